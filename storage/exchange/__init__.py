"""Import of other programs' features into stores, and export of stores to files for other programs."""
