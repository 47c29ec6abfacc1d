"""Training.

training     one Python call: settings, folder, stores; ``vlalign-train`` wraps it
processes    the training in this process, or in one for each device
trainer      a run's examples, model and state, and its loop
prefetch     the inputs of the next steps, made while the model computes
step         one step's loss and gradient; ``gradients`` sums it over processes
validation   how a run is judged while it trains
event_log    the figures of each step
"""
