"""Compare feature files made by others with ours, and find out how they were made."""
