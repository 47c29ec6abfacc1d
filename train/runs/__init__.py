"""A run's folder: its files, and the model in it.

files       names of the files
folder      where a run's folder is, what it is called, and who trains in it
run_json    the inputs, settings and results of a run: ``run.json``, written and checked
checkpoint  the model and the training state, saved and restored
load        a finished run with its model, ready for evaluation and search
"""
