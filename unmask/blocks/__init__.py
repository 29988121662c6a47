"""What results are made of: text, findings, tables of values, figures as data; and their labels."""
