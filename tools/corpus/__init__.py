"""Parts of tools/build_corpus.py: text from Debian packages. Python standard library only."""
