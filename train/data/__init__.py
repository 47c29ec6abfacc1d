"""From captions and feature stores to batches.

stores            the stores that a run reads, opened
clips             clips of videos, and groups of them
clip_features     feature vectors of clips
usable_captions   which captions have features, and why the others have none
pairs             clips with their captions, cached in a file
pair_weights      how probable it is that a clip and its caption belong together
segments          videos with labelled segments
order, batches    which clips and captions each step has
text_inputs       captions as an encoder takes them
text_encoders     tokenizers and text encoders
examples          all of it together: the training examples, and the inputs of each step
clip_dataset      captions and their clips as a PyTorch data set, for custom training loops
"""
