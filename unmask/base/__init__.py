"""What every other package stands on: settings, files, run folders, seeds, devices, progress."""
