"""One direction of facts relearned with exchanged names, and the other direction asked."""
