"""What others' tests say, and which of it is tested here."""
