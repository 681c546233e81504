"""From pixels and words to features: backbones and the UCoFiA parts on top of them."""
