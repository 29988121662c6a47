"""The command line: one file a verb, each thin; heavy imports wait until the verb runs."""
