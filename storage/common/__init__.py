"""What every part of vlalign shares and no part owns: errors, messages, progress, signals, command lines."""
