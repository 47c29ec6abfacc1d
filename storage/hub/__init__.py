"""Models of the Hugging Face hub: their names, their files, and the only code that loads them with transformers."""
