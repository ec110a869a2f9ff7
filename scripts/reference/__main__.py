"""Write the generated blocks of the documents; run by ``make docs``."""

from scripts.reference import blocks

for page in blocks.pages():
    page.write_text(blocks.rewritten(page.read_text()))
