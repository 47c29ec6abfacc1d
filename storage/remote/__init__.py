"""Stores and files on other machines, and which addresses may be opened."""
