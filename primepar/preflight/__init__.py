"""Programs of others: captured from scripts or imported from files, then proved."""
