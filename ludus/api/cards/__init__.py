"""What a run takes of its cards, before it takes it: pages, rows, what is kept and who is placed where."""
