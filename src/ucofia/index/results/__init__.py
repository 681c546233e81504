"""What a person gets: hits, explanations, pictures, similar videos, exports."""
