"""A run's folder: its files, and the model in it.

files       names of the files
folder      where a run's folder is, what it is called, and who trains in it
run_json    what a run was made from and what came out: ``run.json``, written and checked
checkpoint  the model and the training state, saved and restored
load        a finished run with its model, ready for evaluation and search
"""
