"""Block-sparse matrices."""

from __future__ import annotations

from . import _core


class BlockSparse(_core.BlockSparse):
    """A block-sparse attention pattern; rows are query tokens, columns are keys, positions are rows and columns of the whole matrix.

    matrix = BlockSparse(indptr, indices, block_shape=(R, C), shape=(M, N))
        Blocks of one size: block row i has the block columns indices[indptr[i] .. indptr[i + 1]], in any order, none twice.
    matrix = BlockSparse.variable(block_rows, block_cols, map)
        Blocks of any sizes, 0 allowed: map [block rows, block columns], bool. With a leading dimension of KV heads on all three every head has
        a matrix of its own; sizes may differ from head to head, their sums may not.

        kvloom.attention(q, k, v, matrix=matrix)         # q [M, heads, dim], k, v [N, kv_heads, dim]
        plan = engine.plan_sparse(matrix)                # an engine whose Spec has page_size = matrix.page_size; k, v as pages

    num_requests, num_rows and kv_tokens are what Capacity's max_requests, max_query_tokens and max_kv_tokens must allow.
    """

    def __init__(self, indptr, indices, *, block_shape: tuple[int, int], shape: tuple[int, int]):
        (rows, cols), (m, n) = block_shape, shape
        for name, size in (("block_shape", rows), ("block_shape", cols), ("shape", m), ("shape", n)):
            if not isinstance(size, int):
                raise TypeError(f"`{name}`: expected two ints, got {size!r} among them")
        if rows <= 0 or cols <= 0 or m % rows or n % cols:
            raise ValueError(f"`shape`: expected a multiple of block_shape {tuple(block_shape)}, got {tuple(shape)}")
        super().__init__(m // rows, rows, cols, n // cols, indptr, indices)

    @classmethod
    def variable(cls, block_rows, block_cols, map) -> BlockSparse:
        matrix = cls.__new__(cls)
        _core.BlockSparse.__init__(matrix, block_rows, block_cols, map)
        return matrix

    @property
    def pages(self) -> memoryview:
        """The page ids, int32, that a run on a GPU wants there: `pages=torch.tensor(matrix.pages, device="cuda")`."""
        return memoryview(self.page_ids()).cast("i")

    def as_pages(self, x, name: str = "x"):
        """[columns, heads, dim] as [columns / page_size, page_size, heads, dim], in place: what an engine's run wants of K and V."""
        columns = x.shape[0]
        if columns % self.page_size:
            raise ValueError(f"`{name}`: expected a multiple of {self.page_size} columns, the matrix's page_size, got {columns}")
        return x.reshape((columns // self.page_size, self.page_size, *x.shape[1:]))

    def __repr__(self):
        return f"<kvloom.BlockSparse {self.num_rows} rows, {self.num_requests} block rows, page_size {self.page_size}>"
