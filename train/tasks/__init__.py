"""What a run can be asked: one file each, with its page of the report beside it."""
