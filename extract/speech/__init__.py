"""Speech recognition in videos: sandboxed decoders extract the sound, and a confined Whisper model transcribes it."""
