"""Drawings as SVG: classes instead of colours, so that the stylesheet's light and dark hold; no style attributes."""
