"""The steps of the other folders on a Ray cluster."""
