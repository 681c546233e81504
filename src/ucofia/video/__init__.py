"""From a video file to pixels: which seconds, which frames, which crop."""
