"""Models of the Hugging Face hub: their names, their files, and the only way in which transformers loads them."""
