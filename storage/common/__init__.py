"""Code that all parts of vlalign share: errors, messages, progress, signals, processes, files, plugins."""
