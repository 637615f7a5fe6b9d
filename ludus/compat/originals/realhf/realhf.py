"""What `import` finds where this folder is on the path: the names of the original, made of ours."""

from ludus.compat.originals.stand_in import stand_in

stand_in(__name__.rpartition(".")[2])
