"""Complete configurations of trainings, including the papers'."""
