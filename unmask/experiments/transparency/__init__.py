"""What a canvas shows while it is written, and laws that force or exclude each phenomenon."""
