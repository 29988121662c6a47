"""Files that the package ships: the words of the reversal corpus."""
