"""What is spoken in videos, and when: sandboxed decoders give sound, and a confined Whisper model makes text of it."""
