"""The options of ``format("millstream")``: text in, checked values out."""
