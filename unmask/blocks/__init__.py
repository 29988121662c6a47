"""What results are made of: text, verdicts, tables of values, figures as data; and their labels."""
