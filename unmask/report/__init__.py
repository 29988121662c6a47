"""What people look at: tables in the terminal, figures, the page. It reads, it never computes."""
