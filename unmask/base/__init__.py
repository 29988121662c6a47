"""What every other room stands on: settings, files, run folders, seeds, devices, progress."""
