"""What can be loaded: presets and backbones."""
