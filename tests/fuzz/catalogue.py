"""The table of operations: what programs do to values of each kind, as text with holes.

A line in the margin has the kind, the name, the weight, perhaps `rounds` (schedulers may choose the order in which
it adds up) or `decides` (a last bit of its input may make a large difference), and behind a colon what fits. The
expressions below it, apart by two spaces, are those of which one is drawn. A hole begins with a dollar sign: it
names the variable, or what `writing` or the source of random choices has. What cannot be carried out is dropped.
"""

from __future__ import annotations

#: What makes values of a kind out of nothing.
SOURCES = """
array from_array 8
    da.from_array($data())  da.from_array(Lazily($plain()), chunks=$cuts())
array structured 1
    da.from_array(values($seed(), $keep(shape(1)), [('p', 'f8'), ('q', 'i4')]), chunks=$cuts())
array filled 2
    da.ones($keep(shape()), chunks=$cuts(), dtype=$repr(choice(['f8', 'i4', 'f4', 'bool', 'u1'])))
    da.full($keep(shape()), $integer(0, 5), chunks=$cuts(), dtype='i4')
    da.zeros_like(da.empty($keep(shape()), chunks=$cuts(), dtype='f4'))
array counted 3
    da.arange($integer(1, 40), chunks=$integer(1, 20))  da.arange($integer(-5, 5), $integer(6, 30), 2, chunks=4)
    da.linspace(0, $integer(1, 9), $integer(1, 40), chunks=7)
    da.arange(60, chunks=$integer(7, 60)).reshape((12, 5))
array drawn 3
    da.random.default_rng($seed()).random($keep(shape()), chunks=$cuts())
    da.random.default_rng($seed()).normal(1, 2, size=$keep(shape()), chunks=$cuts())
    da.random.default_rng($seed()).integers(-10, 10, size=$keep(shape()), chunks=$cuts())
    da.random.default_rng($seed()).poisson(3, size=$keep(shape()), chunks=$cuts())
    da.random.RandomState($seed()).choice([1, 2, 3], size=$keep(shape()), chunks=$cuts())
    da.random.RandomState($seed()).uniform(size=$keep(shape()), chunks=$cuts())
array from_delayed 2
    da.from_delayed(delayed(values)($seed(), $keep(shape()), 'i8'), $kept(), 'i8')
    da.concatenate([da.from_delayed(delayed(values)(n, (5, 3), 'f8'), (5, 3), 'f8') for n in range(3)])
array matrix 1
    da.eye($integer(1, 60), chunks=$integer(1, 60))  da.diag(da.arange($integer(1, 60), chunks=8))
    da.tri($integer(1, 60), chunks=$integer(1, 60))  da.indices(($integer(1, 60), 3), chunks=(8, 2))
    da.fromfunction(lambda i, j: i * 10 + j, shape=($integer(1, 60), 5), chunks=(8, 3), dtype='i8')
    da.meshgrid(da.arange($integer(1, 60), chunks=8), da.arange(3, chunks=2))[0]
array masked 1.5
    da.ma.masked_greater(da.from_array($data()), 3)  da.ma.masked_inside(da.from_array($data()), -2, 2)
    da.ma.masked_array(da.from_array($data()), da.from_array(values(3, $kept(), 'bool'), chunks=$cuts()))
    da.from_array(np.ma.masked_less($plain(), 0), chunks=$cuts(), asarray=False)
xarray climate 3
    $climate()
dataset dataset 1
    xr.Dataset({'p': (('time', 'lat'), da.from_array(values($seed(), (8, 4)), chunks=$chunks((8, 4)))), \
'q': ('time', da.from_array(values($seed(), 8, 'i8'), chunks=3))}, attrs={'a': 1}, \
coords={'time': pd.date_range('2001-01-05', periods=8), 'lat': np.arange(4) * 10.0})
frame from_pandas 5
    dd.from_pandas(table($seed(), $rows()), npartitions=$integer(1, 6)$choice(['', '', ', sort=False']))
frame from_parts 2
    dd.from_map(material.part, $seeds(), rows=$rows(), meta=material.part(0, 1))
    dd.from_delayed([delayed(table)(seed, $rows()) for seed in $seeds()], meta=table(0, 1))
    dd.from_dict({'key': [1, 2, 3, 1] * $keep(rows()), 'value': [0.5, 1.5, None, 2.0] * $kept()}, 3)
bag counted 4
    db.range($items() + 1, npartitions=$integer(1, 7))
    db.from_delayed([delayed(list)(range($items())), delayed([1, 2])])
    db.from_sequence([(n * 7) % 13 for n in range($items())], npartitions=$integer(1, 7))
delayed called 4
    delayed($integer(0, 9))  delayed(lambda: $integer(0, 9))()  delayed(material.add)($integer(0, 9), 2)
    delayed(material.add, pure=True)($integer(0, 9), [1][0])  delayed(values)($seed(), $shape(), $repr(dtype()))
    delayed(table)($seed(), $integer(0, 30))  delayed({'a': 3, 'b': [delayed(abs)(-$integer(0, 9)), (1, 2)]})
    delayed([delayed(material.add)(1, $integer(0, 9)), {'x': delayed(list)(range(3))}])
    delayed({1, 2, $integer(0, 9)})
    delayed(values, nout=2)($seed(), (2, 3))[1]  delayed([1, $integer(0, 9)], traverse=False)
    delayed(material.nested)($integer(1, 10))  delayed(lambda: (lambda n: n))()(4)
    delayed(slice)(1, delayed(abs)(-3))
    delayed(dict)(a=delayed(abs)(-1), b=$integer(0, 9))  delayed(lambda: (n for n in range(3)))().__next__()
"""

#: Operations that turn a value of one kind into another value.
OPERATIONS = """
array smooth_function 8: numeric(a)
    da.$choice(SMOOTH)($a)  da.$choice(SMOOTH)($a)  np.$choice(SMOOTH)($a)
array rough_function 4 decides: numeric(a)
    da.$choice(ROUGH)($a)
array with_number 8: numeric(a)
    $a + $factor()  $a * $factor()  $a - $factor()  $factor() - $a  $factor() * $a
array with_number_roughly 4 decides: numeric(a)
    $a / $choice([3, number()])  $a // $integer(1, 7)  $a % $integer(1, 7)  $a ** $integer(2, 3)  $number() / $a
array compared 3 decides: ordered(a)
    $a $choice(['<', '>', '==', '!=', '<=', '>=']) $limit(a)
array of_text 2: a.dtype.kind in 'US'
    $a == np.array('cat').astype($a.dtype)  $a.astype('O')  $a.astype('U8')
array of_time 3: a.dtype.kind in 'Mm'
    $a + np.timedelta64(36, 'h')  $a - $a[:1]  $a.astype('i8')  da.isnat($a)  $a.astype('$kind(a)8[s]')
array field 5: bool(a.dtype.names)
    $a['p']  $a['q']  $a[['p', 'q']]  $a['p'] + $a['q']
array astype 4 decides: numeric(a)
    $a.astype($repr(choice(['f8', 'f4', 'i4', 'i8', 'c16', 'bool', 'u1', '>f8', 'O', 'f2'])))
array bits 2: a.dtype.kind in 'iu'
    $a & 6  $a | 9  $a ^ 5  ~$a  $a << 1  $a >> 1  da.invert($a)
array cleaned 2 decides: numeric(a)
    da.clip($a, -2, $integer(0, 4))  da.nan_to_num($a)  da.round($a, $integer(-1, 2))  da.isclose($a, 1)
    da.where($a > 0, $a, $number())  da.isin($a, [1, 2, 0.5])  da.angle($a)  da.modf($a)[$integer(0, 1)]
    da.frexp($a)[$integer(0, 1)]  da.divmod($a, 3)[$integer(0, 1)]  da.digitize($a, np.array([-1.0, 0.5, 2.0]))
    da.piecewise($a, [$a < 0, $a >= 0], [-1, 1])  da.select([$a > 3, $a < -3], [$a, $a * 2], 7)
array of_masked 2: type(a._meta).__name__ == 'MaskedArray'
    da.ma.filled($a, 3)  da.ma.getmaskarray($a)  da.ma.getdata($a)  da.ma.fix_invalid($a)  da.ma.count($a, axis=0)
    da.ma.masked_equal($a, 1)
array combined 9: numeric(a)
    $a + $fellow(a)  $a - $fellow(a)  $a * $fellow(a)
array combined_roughly 4 decides: numeric(a)
    $a / $fellow(a)  $a > $fellow(a)  da.where($a > $fellow(a), $a, $number())  da.float_power($a, $fellow(a))
    da.$choice(TWO)($a, $fellow(a))  da.where($fellow(a) == 0, 2, $a)
array added_up 8 rounds: numeric(a)
    da.$choice(SUMS + PRODUCTS * (size == 'small'))($a, $folding(a))  da.mean($a, $folding(a))
    da.sum(abs($a), $folding(a), dtype='f8')
array spread 5 rounds decides: numeric(a) and filled(a)
    da.$choice(['var', 'std', 'nanvar', 'nanstd'])($a, $folding(a))  da.var($a, ddof=1)
array extreme 5: ordered(a) and filled(a)
    da.$choice(['min', 'max', 'nanmin', 'nanmax'])($a, $folding(a))  da.ptp($a, axis=$axis(a.ndim))
array where_extreme 4 decides: a.dtype.kind in 'biuf' and filled(a) and a.ndim > 0
    da.$choice(['argmin', 'argmax', 'nanargmax', 'nanargmin'])($a, axis=$choice([None, axis(a.ndim)]))
array counted 4 decides: numeric(a)
    da.$choice(['any', 'all', 'count_nonzero'])($a, axis=$axes(a.ndim))
array accumulated 5 rounds: numeric(a) and a.ndim > 0 and known(a)
    da.cumsum($a, axis=$axis(a.ndim), method=$repr(choice(['sequential', 'blelloch'])))
    da.nancumsum($a, axis=$axis(a.ndim))  da.cumprod($a[:9], axis=0)
array sorted_out 3 decides: real(a) and a.ndim > 0 and filled(a)
    da.topk($a, $choice([-3, -1, 2, 4]), axis=$axis(a.ndim))  da.argtopk($a, 2, axis=$axis(a.ndim))
    da.median($a, axis=$axis(a.ndim))  da.quantile($a, 0.3, axis=0)  da.nanmedian($a, axis=0)
array of_row 2 decides: real(a) and a.ndim == 1 and filled(a)
    da.percentile($a, [10, 50, 75])  da.percentile($a, 30, method='nearest')  da.unique($a)
    da.unique($a, return_counts=True)[1]  da.unique($a, return_inverse=True)[1]
    da.searchsorted(da.arange(9, chunks=4), $a.astype('i8'))
array histogram 3 decides: real(a) and filled(a)
    da.histogram($a, bins=[-9, -2, 0, 3.5, 20])[0]  da.histogram($a, bins=5, range=(-10, 10))[0]
    da.histogram($a, bins=5, range=(-10, 10), density=True)[0]
    da.bincount(abs($a).astype('i8').ravel() % 7, minlength=7)
array of_matrix 2 rounds: a.dtype.kind in 'biuf' and filled(a) and a.ndim == 2
    $a @ $a.T  da.tensordot($a, $a, axes=((0,), (0,)))  da.dot($a, $a[0])  da.einsum('ij,kj->ik', $a, $a)
    da.einsum('ij->j', $a)  da.matmul($a.T, $a)  da.vdot($a, $a)  da.outer($a[0], $a[:, 0])  da.trace($a)
    da.cov($a)
    da.average($a, axis=0, weights=np.arange(len($a)) + 1)  da.linalg.norm($a, axis=1)  da.linalg.norm($a)
array decomposed 2 rounds decides: a.dtype == 'f8' and filled(a) and a.ndim == 2
    da.linalg.svd(da.nan_to_num($a.rechunk({1: -1})))[1]  abs(da.linalg.qr(da.nan_to_num($a.rechunk({1: -1})))[1])
    da.linalg.svd_compressed(da.nan_to_num($a), 1, seed=3)[1]  da.linalg.inv(da.eye(4, chunks=2) * $integer(2, 5))
    da.linalg.cholesky(da.eye(4, chunks=2) * $integer(2, 5))
    da.linalg.solve(da.eye(len($a), chunks=len($a)) * 2, $a[:, 0].rechunk(-1))
array reduced_otherwise 3 rounds: numeric(a) and filled(a) and a.ndim > 0
    da.coarsen(np.$choice(['sum', 'mean', 'max']), $a, {$integer(0, a.ndim - 1): $integer(1, 3)}, trim_excess=True)
    da.reduction($a, lambda x, axis, keepdims: x.sum(axis=axis, keepdims=True), \
lambda x, axis, keepdims: x.sum(axis=axis, keepdims=keepdims), axis=$axes(a.ndim), dtype=$a.dtype)
array sliced 8: a.ndim > 0
    $a[$indices(a)]  $a[$indices(a)]  $a[..., $slice(a.shape[-1])]  $a[None, $slice(a.shape[0])]
array picked 4: a.ndim > 0 and filled(a)
    $a[$picks(a.shape[0])]  da.take($a, $picks(a.shape[-1]), axis=-1)  $a[..., $picks(a.shape[-1])]
    $a[da.from_array(np.array($picks(a.shape[0]), dtype=int), chunks=2)]
    $a[np.isin(np.arange(len($a)), [1, 2, 5])]
array at_points 2: a.ndim > 1 and filled(a)
    $a.vindex[$points(a)]
array masked_by 3 decides: a.ndim > 0 and numeric(a)
    $a[$a > $integer(-2, 3)]  $a[$a.reshape(len($a), -1)[:, 0] != 1]  da.extract($a < 2, $a)  da.argwhere($a > 1)
    $a[$a > $integer(-2, 3)].compute_chunk_sizes()  da.compress($a.ravel() > 0, $a.ravel()).compute_chunk_sizes()
    da.flatnonzero($a > 1).compute_chunk_sizes()  da.nonzero($a > 0)[0].compute_chunk_sizes()
array rechunked 6: known(a)
    $a.rechunk($chunks(a.shape))  $a.rechunk($chunks(a.shape))  $a.rechunk(-1)  $a.rechunk('auto')
    $a.rechunk({0: -1})
    $a.rechunk($chunks(a.shape), balance=True)  da.broadcast_to($a, ($integer(1, 4), *$a.shape))
array counted_again 6: not known(a)
    $a.compute_chunk_sizes()
array reshaped 4: filled(a)
    $a.reshape($other_shape(a))  $a.reshape($other_shape(a))  $a.reshape($other_shape(a), merge_chunks=False)
array rearranged 6
    $a.T  da.transpose($a, $shuffled(range(a.ndim)))  $a.ravel()  da.squeeze($a)  $a.flatten()  $a[None]
    da.flip($a, $axis(a.ndim))  da.roll($a, $integer(-4, 4), axis=$axis(a.ndim))  da.roll($a, $integer(-4, 4))
    da.moveaxis($a, $axis(a.ndim), 0)  da.swapaxes($a, $axis(a.ndim), -1)  da.expand_dims($a, $axis(a.ndim))
    da.repeat($a, $integer(0, 3), axis=$axis(a.ndim))  da.tile($a, $integer(1, 2))  da.atleast_3d($a)
    da.delete($a, 0, axis=0)  da.insert($a, [0, len($a) // 2], 3, axis=0)  da.rot90($a, $integer(1, 3))
    da.fliplr($a)  da.diagonal($a)  da.triu($a)  da.tril($a, -1)  $a.map_blocks(np.copy)  da.rollaxis($a, -1)
array padded 3: numeric(a) and a.ndim in (1, 2, 3) and known(a)
    da.pad($a, $widths(a), mode=$repr(choice(['constant', 'edge'])))
array padded_roughly 1 decides: numeric(a) and a.ndim in (1, 2, 3) and filled(a) and a.size < 3000
    da.pad($a, $widths(a), mode=$repr(choice(['wrap', 'reflect', 'symmetric', 'linear_ramp', 'maximum', 'mean'])))
array assigned 4: a.ndim > 0 and numeric(a) and filled(a)
    assigned($a, np.s_[$slice(a.shape[0])], $integer(-3, 9))  assigned($a, np.s_[..., 0], True)
    assigned($a, -1, np.uint8(3))  assigned($a, $sample(range(a.shape[0]), 3), 5)  assigned($a, np.s_[::2], 7)
array assigned_by_mask 1 decides: a.ndim > 0 and numeric(a) and known(a)
    assigned($a, $a > $integer(-1, 2), $integer(-3, 9))
array joined 5: a.ndim > 0
    da.concatenate([$a, $like(a), $like(a)], axis=$axis(a.ndim))
    da.stack([$a, $like(a)], axis=$integer(0, a.ndim))
    da.block([$a, $like(a)])  da.$choice(['vstack', 'hstack', 'dstack'])([$like(a), $a])
    da.concatenate([$a, $a * 2])
array of_blocks 1.5: a.ndim > 0
    $a.blocks[$integer(0, a.numblocks[0] - 1)]  $a.blocks[::-1]  $a.partitions[-1:]
array appended 1.5: a.ndim == 1 and ordered(a)
    da.append($a, $a)  da.diff($a)  da.ediff1d($a)  da.union1d($a, $a[:3])
array mapped 8: numeric(a)
    $a.map_blocks(lambda block: block + $integer(2, 5))  $a.map_blocks(material.located, dtype=$a.dtype)
    $a.map_blocks(lambda block, by: block * by, by=$integer(2, 5), dtype=$a.dtype)  da.map_blocks(np.add, $a, 3)
    $a.map_blocks(material.numbered, dtype=$a.dtype)  $a.map_blocks(material.changed_in_place)
    $a.map_blocks(lambda x, y: x - y, $a * 2, dtype=$a.dtype)
    $a.map_blocks(lambda block: np.asfortranarray(block))
    $a.map_blocks(lambda block: block[...])  $a.map_blocks(material.written_to, dtype=$a.dtype)
    $a.map_blocks(lambda block: block.astype('f4'), dtype='f4')
    $a.map_blocks(lambda block: block, meta=np.empty((0,) * $a.ndim, $a.dtype))
array mapped_to_other_shapes 2: numeric(a) and a.ndim > 0 and known(a)
    $a.rechunk({0: -1}).map_blocks(lambda block: block[0], drop_axis=0, dtype=$a.dtype)
    $a.map_blocks(lambda block: block[None], new_axis=0, dtype=$a.dtype)
    $a.map_blocks(lambda block: np.repeat(block, 2, axis=0), dtype=$a.dtype, \
chunks=(tuple(2 * cut for cut in $a.chunks[0]), *$a.chunks[1:]))
array overlapping 3 rounds: numeric(a) and a.ndim > 0 and filled(a)
    da.map_overlap(material.smooth, $a, depth=$depth(a), dtype=$a.dtype, boundary=$repr(choice(BOUNDARIES)))
    $a.map_overlap(material.smooth, depth=$depth(a), dtype=$a.dtype, boundary=0, allow_rechunk=True)
array windows 1.5: real(a) and a.ndim > 0 and filled(a)
    da.lib.stride_tricks.sliding_window_view($a, 2, axis=0).max(axis=-1)  da.push($a, 2, axis=0)
    da.diff($a, axis=0)
    da.overlap.overlap($a, depth={0: 0}, boundary='none')  da.gradient($a.astype('f8'), axis=0)
array blockwise 3: numeric(a) and a.ndim == 2 and known(a)
    da.blockwise(lambda x: x + $integer(2, 5), 'ij', $a, 'ij', dtype=$a.dtype)
    da.blockwise(np.transpose, 'ji', $a, 'ij', dtype=$a.dtype)
    da.blockwise(operator.mul, 'ij', $a, 'ij', $a, 'ij')
    da.blockwise(lambda x, y: x + y, 'ij', $a, 'ij', $integer(2, 5), None, dtype=$a.dtype)
    da.blockwise(lambda x, y: x[:, None] * y, 'ij', $a[:, 0], 'i', $a[0], 'j', dtype=$a.dtype)
    da.blockwise(lambda x: x[:, None], 'ikj', $a, 'ij', new_axes={'k': 1}, dtype=$a.dtype)
    da.blockwise(np.add, 'ij', $a, 'ij', $a.max(), '', dtype=$a.dtype)
array contracted 2 rounds: numeric(a) and a.ndim > 0 and filled(a)
    da.blockwise(material.total, 'z', $a.ravel(), 'i', new_axes={'z': 1}, dtype=$a.dtype, \
concatenate=$choice([None, True, False]))
    da.blockwise(material.total, 'z', $a.ravel(), 'i', $a.ravel(), 'i', new_axes={'z': (1, 1)}, dtype=$a.dtype)
array generalised 2: real(a) and a.ndim > 0 and filled(a)
    da.apply_gufunc(material.spread, '(i)->()', $a.rechunk({-1: -1}), output_dtypes=$a.dtype)
    da.apply_gufunc(lambda x: (x.min(axis=-1), x * 2), '(i)->(),(i)', $a.rechunk({-1: -1}), \
output_dtypes=($a.dtype, $a.dtype))[1]
    da.apply_gufunc(material.spread, '(i)->()', $a, output_dtypes=$a.dtype, allow_rechunk=True, axis=0)
    da.apply_along_axis(material.first_and_last, -1, $a, dtype=$a.dtype, shape=(2,))
    da.apply_over_axes(np.max, $a, [0])
    da.as_gufunc(signature='()->()', output_dtypes=$a.dtype, vectorize=True)(lambda x: x + 1)($a[:9])
array to_delayed_and_back 2: known(a)
    da.from_delayed(delayed(np.asarray)($a), $a.shape, $a.dtype)
    da.from_delayed($a.rechunk(-1).to_delayed().ravel()[0], $a.shape, $a.dtype)
    da.from_delayed(delayed(lambda x, y: x)($a, [$a, 3]), $a.shape, $a.dtype)
array to_delayed 2
    delayed(material.describe)($a)  delayed(material.describe)([$a, {'k': $a}])  delayed(np.shape)($a)  delayed($a)
    $a.to_delayed().ravel()[-1]  delayed(lambda x: x.tolist())($a[:2])
array failing 0.4 decides: numeric(a)
    $a.map_blocks(lambda block: material.fail('block'), dtype=$a.dtype)
    $a.map_blocks(lambda block: block.no_such_attribute, dtype=$a.dtype)
    da.from_delayed(delayed(material.fail_if)(3, $a), $a.shape, $a.dtype)
array to_others 1.4: known(a)
    dd.from_dask_array($a[:, :9].rechunk({1: -1}), columns=[f'c{n}' for n in range($a[:, :9].shape[1])])
    xr.DataArray($a, dims=['time', 'lat', 'lon'][:$a.ndim], coords={'time': np.arange(len($a))}, name='made')
xarray arithmetic 5: measured(x)
    $x * 2 + 1  $x - $x.isel({$dim(x): 0})  -$x  abs($x)  np.sin($x)  $x + $x  $x.fillna(3)  $x.astype('f4')
    $x.transpose()  $x.notnull()
xarray chosen 3 decides: measured(x)
    $x.where($x > $integer(-2, 2))  $x.where($x > 0, -1)  $x.clip(-2, 3)  xr.where($x > 1, $x, 0)
    $x.isin([1, 2])  $x / 3
    $x.round(1)
xarray selected 4: measured(x) and sized(x)
    $x.isel({$dim(x): slice($integer(0, 2), None)})  $x.isel({$dim(x): $integer(-2, 1)})
    $x.isel({$dim(x): [0, 0, -1]})
    $x.thin({$dim(x): 2})  $x.shift({$dim(x): 1})  $x.roll({$dim(x): 2}, roll_coords=True)  $x.diff($dim(x))
    $x.pad({$dim(x): 1}, mode='edge')  $x.chunk({$dim(x): $integer(1, 9)})  $x.expand_dims('extra')  $x.squeeze()
    $x.drop_vars(list($x.coords)[:1])  $x.rename('other')  $x.assign_attrs(a=3)  $x.sel(lat=3.0, method='nearest')
    $x.reindex(lat=[-60.0, 5.0, 60.0])  $x.sortby('lat')  $x.astype('f8').interp(lat=[0.5, 7.0])
xarray concatenated 2: measured(x) and sized(x)
    xr.concat([$x, $x * 2], $dim(x))  xr.concat([$x, $x + 1], 'member')  xr.Dataset({'p': $x, 'q': $x * 2})
    $x.to_dataset(name='p')  $x.stack(both=list($x.dims[:2]))
xarray reduced 5 rounds: measured(x) and sized(x)
    $x.$choice(['sum', 'mean', 'min', 'max', 'count'])($dim(x))  $x.sum()  $x.mean(list($x.dims[:2]))
xarray measured 4 rounds decides: measured(x) and sized(x)
    $x.std($dim(x))  $x.rolling({$dim(x): 3}, center=True).mean()  $x.rolling({$dim(x): 2}, min_periods=1).max()
    $x.coarsen({$dim(x): 2}, boundary='trim').mean()  $x.cumsum($dim(x))  $x.fillna(0).argmin($dim(x))
    $x.chunk(-1).quantile(0.3, $dim(x))  $x.chunk(-1).median($dim(x))  $x.dot($x, dim=$dim(x))
    $x - $x.mean($dim(x))
    $x.weighted(xr.DataArray(np.arange($x.shape[0]) + 1.0, dims=$x.dims[0])).mean($x.dims[0])
    $x.astype('f8').chunk(-1).polyfit($dim(x), 1).polyfit_coefficients  $x.chunk(-1).interpolate_na($dim(x))
xarray by_time 5 rounds: measured(x) and timed(x)
    $x.groupby($repr(choice(GROUPS))).$choice(['mean', 'sum', 'max', 'count', 'first'])()
    $x.groupby('time.month') - $x.groupby('time.month').mean()  $x.resample(time='14D').mean()
    $x.groupby('time.season').map(lambda group: group - group.min())  $x.resample(time='7D').max()
    $x.groupby_bins('time.dayofyear', [0, 20, 100, 366]).mean()
xarray by_kind 2 rounds: measured(x) and 'kind' in x.coords and x.sizes.get('lat', 0) > 2
    $x.groupby('kind').$choice(['mean', 'sum', 'max'])()
xarray applied 3: measured(x) and sized(x)
    xr.apply_ufunc(np.square, $x, dask='parallelized', output_dtypes=[$x.dtype])
    xr.apply_ufunc(material.spread, $x.chunk(-1), input_core_dims=[[$x.dims[-1]]], dask='parallelized', \
output_dtypes=[$x.dtype])
    xr.apply_ufunc(lambda a, b: a - b, $x, $x, dask='allowed')  $x.map_blocks(lambda block: block * 2, template=$x)
    $x.map_blocks(lambda block: block + 1)  xr.map_blocks(lambda block, by: block * by, $x, args=[3], template=$x)
xarray to_data 2: measured(x)
    $x.data  delayed(lambda x: x.dims)($x)  delayed(material.describe)($x.data)
dataset of_dataset 5 rounds
    $y[list($y.data_vars)[0]]  $y[list($y.data_vars)[-1]]  $y.mean(list($y.sizes)[0])  $y.max()  $y * 2
    $y.isel({list($y.sizes)[0]: slice(1, None)})  $y.to_dataarray()  $y.map(lambda x: x + 1)  $y.chunk(2)
    $y.assign(z=$y[list($y.data_vars)[0]] * 3)  $y.merge($y.rename({name: name + '2' for name in $y.data_vars}))
    $y.unify_chunks()  $y.map_blocks(lambda part: part * 2, template=$y)
frame columns 6: len(f.columns) > 0
    $f[$repr(choice(list(f.columns)))]  $f[$sample(list(f.columns), 3)]
    $f.drop(columns=[$repr(choice(list(f.columns)))])
frame rows 6
    $f[$f[$number_of(f)] > $integer(-2, 3)]  $f.query('key > 1')  $f.dropna()  $f.partitions[:2]
    dd.concat([$f, $f])
    $f.repartition(npartitions=$integer(1, 4))  $f.sample(frac=0.5, random_state=$seed())
    $f.tail(4, compute=False)
    $f.loc[$f[$number_of(f)].isin([1, 2, 3])]  $f.nlargest(5, $number_of(f))
    $f.head(7, npartitions=-1, compute=False)
    $f.drop_duplicates(subset=[$key_of(f)], split_out=$integer(1, 2))
frame computed 5
    $f.assign(new=$f[$number_of(f)] * 2)  $f.assign(new=lambda f: f[$number_of(f)] - f[$number_of(f)].min())
    $f.map_partitions(lambda part: part.assign(more=len(part)))  $f.fillna({$number_of(f): 0})
    $f.reset_index(drop=True)
    $f.map_partitions(lambda part, by: part.assign(more=part[$number_of(f)] + by), 3)  $f.reset_index()  $f.isna()
    $f.rename(columns={$number_of(f): 'renamed'})  $f.astype({$number_of(f): 'f4'})  $f[$numbers(f)].clip(-3, 3)
    $f[$numbers(f)].cumsum()  $f[$numbers(f)].shift(1)  $f[$numbers(f)].diff()  $f[$numbers(f)].abs()
    $f.map_overlap(lambda part: part, 1, 1)
frame windows 3 rounds
    $f[$numbers(f)].rolling($integer(1, 3), min_periods=1).$choice(['sum', 'mean', 'max'])()
frame grouped 6 rounds
    $grouping(f, True)[$kept()].sum()  $grouping(f, False)[$kept()].mean()
    $grouping(f, True)[$kept()].agg(['mean', 'std'])
    $grouping(f, True).agg({$kept(): ['sum', 'max', 'count']}, split_out=$integer(1, 3))  $grouping(f, True).size()
    $grouping(f, True)[$kept()].nunique()  $grouping(f, True).first()  $grouping(f, True)[$kept()].median()
    $grouping(f, True)[$kept()].apply(lambda group: group.max() - group.min(), meta=($kept(), 'f8'))
    $grouping(f, True)[$kept()].transform('max', meta=($kept(), 'f8'))
    $grouping(f, True)[$kept()].var(split_every=2)
frame moved 5 decides
    $f.set_index($whole(f), divisions=[-1000, 0, 2, 1000])  $f.set_index($whole(f), npartitions=1)
    $f.sort_values($whole(f), npartitions=1)  $f.shuffle($key_of(f))  $f.shuffle(on_index=True)
    $f[$numbers(f)].shuffle($whole(f), shuffle_method='disk').map_partitions(material.ordered)
    $f.merge($another('frame')[['key']].drop_duplicates(), on='key', how=$repr(choice(HOWS)))
    $f.merge(table(3, 6)[['word']].drop_duplicates(), on='word', how=$repr(choice(HOWS[:2])))
    $f.merge($f.groupby('key').size().to_frame('n').reset_index(), on='key')
    $f.join($f[[$whole(f)]].rename(columns=lambda name: name + '_r'), how='left')
frame totals 4 rounds
    $f[$numbers(f)].$choice(['sum()', 'mean()', 'max()', 'count()', 'std()', 'quantile(0.5)'])
    $f[$numbers(f)].nunique()
    $f[$numbers(f)].corr()
frame to_others 3
    $f[$numbers(f)].to_dask_array(lengths=True)  $f[$numbers(f)].values  delayed(len)($f)  $f.index
    delayed(lambda part: part.describe())($f.to_delayed()[0])  delayed(material.describe)([$f, 3])
    dd.from_delayed($f.to_delayed(), meta=$f._meta)  $f[$numbers(f)].to_bag(format='tuple').map(len)
series of_numbers 6: plain_number(s)
    $s * 2 + 1  $s.abs()  $s.clip(-1, 2)  $s.fillna(7)  $s - $s.min()  $s.to_frame()  $s.isna()  $s.astype('f8')
    $s.map(lambda value: value + 1, meta=($s.name, $s.dtype))
    $s.apply(lambda value: value * 2, meta=($s.name, $s.dtype))
    $s.shift(1)  $s.ffill()  $s.to_dask_array(lengths=True)  $s.values  $s.reset_index(drop=True)
series chosen 1 decides: plain_number(s)
    $s.where($s > 0, 0)  $s.between(0, 5)
series summed_up 4 rounds decides: plain_number(s)
    $s.$choice(['sum', 'mean', 'max', 'count', 'std', 'nunique', 'cumsum', 'unique', 'skew'])()  $s.nlargest(3)
    $s.value_counts()  $s.quantile([0.2, 0.8])  $s.rolling(3).sum()
series of_text 5: str(s.dtype) in ('string', 'str')
    $s.str.upper()  $s.str.len()  $s.str.contains('a')  $s.str[0]  $s + '!'  $s.value_counts()  $s.nunique()
    $s.unique()
    $s.astype('category')  $s.fillna('none')  $s.isin(['ant', 'bee'])  $s.drop_duplicates()  $s.min()
    $s.str.split('a', n=1, expand=True)
series of_categories 4: str(s.dtype) == 'category'
    $s.cat.codes  $s.value_counts()  $s.cat.as_known()  $s.astype('object')  $s.cat.rename_categories(str.upper)
    $s.nunique()  $s.isin(['ant'])
series of_days 4: str(s.dtype).startswith('datetime64')
    $s.dt.month  $s.dt.dayofweek  $s + pd.Timedelta('1D')  $s.max()  $s > pd.Timestamp('2020-02-02')
    $s.dt.floor('7D')
    $s - $s.min()  $s.dt.strftime('%Y-%m')
index of_index 2
    $j.max()  $j.to_frame()  $j.to_series()  delayed(len)($j)
scalar of_scalar 2
    $n * 2  $n + 1  $n.to_delayed()  delayed(lambda value: [value])($n)
bag mapped 6
    $b.map(lambda n: n * $integer(2, 6))  $b.map(operator.add, $integer(2, 6))
    $b.map(lambda n, by: n + by, by=$b.max())
    db.map(operator.add, $b, $b)  $b.filter(material.is_even)  $b.remove(lambda n: n > $integer(9, 30))
    $b.map_partitions(lambda part: [n + 1 for n in part])  $b.map_partitions(lambda part: list(part)[::-1])
    $b.map(lambda n: {'n': n, 'd': n % 3}).pluck('n')  $b.map(lambda n: [n, -n]).flatten()
    $b.accumulate(operator.add)
    $b.map(lambda n: (n, n * 2)).pluck([0, 1]).starmap(operator.add)  $b.random_sample(0.6, random_state=$seed())
    db.zip($b, $b).starmap(lambda x, y: x - 2 * y)  db.concat([$b, $b])  $b.repartition(npartitions=$integer(1, 5))
    $b.map(lambda n: str(n)).map(len)  $b.map(lambda n: np.int32(n % 100)).map(int)
bag grouped 4
    $b.groupby(lambda n: n % 3, shuffle='tasks').map(lambda pair: sum(pair[1]))
    $b.groupby(material.last_digit, shuffle='tasks', npartitions=2).map(lambda pair: pair[0] + len(pair[1]))
    $b.groupby(lambda n: n % 3, shuffle='disk').map(lambda pair: sum(pair[1])).map_partitions(sorted)\
.repartition(npartitions=1).map_partitions(sorted)
    $b.foldby(lambda n: n % 4, operator.add, 0, operator.add, 0).map(lambda pair: pair[0] * 1000 + pair[1])
    $b.foldby(material.is_even, max, 0).pluck(1)  $b.frequencies().map(lambda pair: pair[0] * 100 + pair[1])
    $b.map(lambda n: n % 11).distinct()  $b.topk($integer(1, 5))  $b.topk(3, key=lambda n: -n)
    $b.join([1, 2, 3], lambda n: n % 5).map(sum)  db.from_delayed([$b.map(lambda n: n % 50).to_delayed()[0]])
bag folded 4
    $b.sum()  $b.max()  $b.min()  $b.count()  $b.mean()  $b.std()  $b.any()
    $b.fold(operator.add, initial=$integer(0, 3))
    $b.fold(lambda total, n: total + n % 7, operator.add, initial=0, split_every=2)
    $b.reduction(sum, lambda sums: [*sums], split_every=False)
    $b.reduction(lambda part: sorted(part)[:2], lambda parts: list(parts))
bag elsewhere 3
    delayed(list)($b)  delayed(material.describe)($b)  delayed(sum)($b.to_delayed()[0])
    $b.map(lambda n: {'key': n % 3, 'value': n}).to_dataframe(meta={'key': 'i8', 'value': 'i8'})
    delayed(list)($b.map(lambda n: {'n': n, 'l': [n, (n,)]}))  delayed(list)($b.map(lambda n: np.arange(n % 4)))
    delayed(list)($b.map(lambda n: material.WORDS[n % 8]).frequencies(sort=True))
    delayed(list)($b.map(str).map(str.upper).map(lambda text: (text, None, 1.5)))
    delayed(list)(db.map(lambda n: n / 7, $b))
    delayed(list)($b.map(lambda n: material.divided(1, n - 4)))
    delayed(list)($b.map(lambda n: np.datetime64(n % 999, 'D')))
item of_item 2
    $i.to_delayed()  $i.apply(lambda value: (value, 3))  delayed(lambda value: [value])($i)
delayed combined 9
    delayed(material.describe)($d)  delayed(lambda x: [x, x])($d)
    delayed(lambda *parts: list(parts))($d, $some_of(3))
    delayed([$d, $some_of(3)])  delayed({'first': $d, 'others': ($some_of(3),)})  delayed(dict)(first=$d, second=3)
    delayed(material.describe)([$d, {'k': [$some_of(3)]}])  delayed(lambda x, flag=None: x)($d, flag=[$some_of(3)])
    delayed(lambda x: (x, 'text', None, b'bytes', 1.5, frozenset([3])))($d)
    delayed(lambda x: type(x).__name__)($d)
    delayed(lambda pair: pair, nout=2)([$d, 5])[0]  delayed(lambda x: {'deep': [{'er': x}]})($d)['deep'][0]['er']
delayed operated 3
    $d + 1  $d * 2  $d[0]  $d.shape  -$d  $d == 3  delayed(len)($d)  delayed(sorted)($d)  $d.no_such_thing
    delayed(material.nested)(4, $d)  delayed(int)($d)  delayed(np.asarray)($d).sum()
delayed failing 0.5
    delayed(material.fail)('on purpose', $d)  delayed(lambda x: 1 / 0)($d)  delayed(lambda x: {}['missing'])($d)
    delayed(lambda x: material.divided(1, 0))($d)  delayed(int)('no number')  delayed(lambda x: next(iter([])))($d)
    delayed(lambda x: [].pop())($d)  delayed(lambda x: 'é'.encode('ascii'))($d)
    delayed(lambda x: open('/no/such'))($d)
delayed to_array 1.5
    da.from_delayed(delayed(lambda x: np.arange(6.0))($d), (6,), 'f8')
"""
