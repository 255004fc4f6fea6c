"""A demonstration on real data: ``python -m weft demo``.

It trains a classifier on the handwritten digits that come with scikit-learn, compares eager with compiled code, and
saves a picture. It needs the packages of ``pip install 'weft[demo]'``.
"""
