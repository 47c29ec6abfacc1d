"""Encoders that other libraries load by name: their profiles, their pictures and their networks."""
