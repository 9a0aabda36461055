"""Writes files as people and attackers make them; the first part of a name is what the
scanner must say of it."""
import bz2, gzip, io, os, pickle, sys, tarfile, zipfile, zlib

out = sys.argv[1]


def put(name, data):
    with open(os.path.join(out, name), "wb") as f:
        f.write(data)


class Evil:
    def __reduce__(self):
        return os.system, ("true",)


class Own:
    pass


class Gets:
    def __reduce__(self):
        return getattr, (Own(), "x")


class Evals:
    def __reduce__(self):
        return eval, ("1",)


def zipped(**members):
    b = io.BytesIO()
    with zipfile.ZipFile(b, "w") as z:
        for name, data in members.items():
            z.writestr(name.replace("__", "."), data)
    return b.getvalue()


for p in range(6):
    put(f"danger-p{p}.pkl", pickle.dumps(Evil(), p))
    put(f"danger-eval-p{p}.txt", pickle.dumps([1, "x", Evals()], p))
    put(f"danger-getattr-p{p}.bin", pickle.dumps(Gets(), p))
    put(f"unknown-p{p}.pkl", pickle.dumps(Own(), p))
    put(f"known-p{p}.pkl", pickle.dumps({"a": [1, 2.5, "x", b"y", (None, True), {1, 2}, 10**40]}, max(p, 2)))
    put(f"danger-second-p{p}.pkl", pickle.dumps({"a": 1}, p) + pickle.dumps(Evil(), p))
    # A loader has called it before it finds out that the rest is missing.
    put(f"danger-broken-p{p}.pkl", pickle.dumps(Evil(), p)[:-1] + b"\xff")

evil = pickle.dumps(Evil(), 4)
put("danger-zip.pt", zipped(data__pkl=evil, version=b"3"))
put("danger-nested.zip", zipped(inner__zip=zipped(deep__bin=evil)))
put("danger-gzip.gz", gzip.compress(evil))
put("danger-bz2.bin", bz2.compress(evil))
put("danger-zlib.joblib", zlib.compress(evil, 3))
put("danger-protobuf-suffix.onnx", evil)
put("danger-behind.png", b"\x89PNG\r\n\x1a\n" + zipped(a=evil))
put("danger-extension.pkl", b"\x80\x02\x82\x07)R.")
put("danger-computed.pkl", b"\x80\x04N\x8c\x06system\x93.")
put("danger-memo.pkl", b"\x80\x04\x8c\x02os\x94\x8c\x06system\x940" + b"0h\x00h\x01\x93\x8c\x04true\x85R.")
put("danger-attribute.pkl", b"\x80\x04\x8c\x05numpy\x8c\x09os.system\x93\x8c\x04true\x85R.")
put("danger-twice-protocol.pkl", b"\x80\x02\x80\x02N0\x80\x04\x80\x02cos\nsystem\n(U\x04truetR.")
put("danger-hidden-name.pkl", b"V\\u006fs\nVsystem\n\x93(Vtrue\ntR.")
put("danger-inst.pkl", b"(S'true'\nios\nsystem\n.")
put("danger-obj.pkl", b"(cos\nsystem\nS'true'\no.")

b = io.BytesIO()
with tarfile.open(fileobj=b, mode="w") as t:
    i = tarfile.TarInfo("a/b.bin")
    i.size = len(evil)
    t.addfile(i, io.BytesIO(evil))
put("danger-tar.tar", b.getvalue())
put("danger-tgz.tgz", gzip.compress(b.getvalue()))
for name, change in {
    "symlink": dict(name="a", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
    "hardlink": dict(name="a", type=tarfile.LNKTYPE, linkname="b"),
    "device": dict(name="a", type=tarfile.CHRTYPE),
    "absolute": dict(name="/etc/x"),
    "dots": dict(name="a/../../x"),
}.items():
    b = io.BytesIO()
    with tarfile.open(fileobj=b, mode="w") as t:
        i = tarfile.TarInfo("x")
        for k, v in change.items():
            setattr(i, k, v)
        t.addfile(i)
    put(f"danger-tar-{name}.tar", b.getvalue())

for name, members in {
    "absolute": ["/etc/x"], "dots": ["../x"], "inner-dots": ["a/../../x"], "backslash": ["..\\x"], "drive": ["C:\\x"], "twice": ["a", "a"], "same": ["a/b", "a//b"],
}.items():
    b = io.BytesIO()
    with zipfile.ZipFile(b, "w") as z:
        import warnings
        warnings.simplefilter("ignore")
        for m in members:
            z.writestr(m, b"x")
    put(f"danger-zip-{name}.zip", b.getvalue())
b = io.BytesIO()
with zipfile.ZipFile(b, "w") as z:
    i = zipfile.ZipInfo("link")
    i.external_attr = 0o120777 << 16
    z.writestr(i, "/etc/passwd")
put("danger-zip-symlink.zip", b.getvalue())
put("danger-cut.zip", zipped(a=b"x" * 100)[30:])
put("data-plain.zip", zipped(a=b"x" * 100, b=b"{}"))
put("code-lambda.keras", zipped(config__json=b'{"layers": [{"class_name": "Lambda", "config": {}}]}'))
put("data-dense.keras", zipped(config__json=b'{"layers": [{"class_name": "Dense", "name": "Lambda"}]}'))
put("code-lambda.h5", b"\x89HDF\r\n\x1a\n" + b"\0" * (1 << 20) + b'{"class_name":"Lambda"}' + b"\0" * 100)
put("danger-elf.bin", b"\x7fELF\x02\x01\x01" + b"\0" * 100)
put("danger-pe.bin", b"MZ" + b"\0" * 58 + (64).to_bytes(4, "little") + b"PE\0\0" + b"\0" * 60)
put("danger-macho.bin", b"\xcf\xfa\xed\xfe" + b"\0" * 100)

# Archives that are one thing to Go and C and another to Python: their directory is not where they say.
def two_faces(zip64):
    import struct
    kind = struct.pack("<I", 0x02014b50)
    plain, bad = zipped(a__pkl=b"harmless" * 100), zipped(a__pkl=evil)
    seen, hidden = plain.index(kind), bad.index(kind)
    directory, end = bad[hidden:-22], bytearray(plain[-22:])
    start = len(plain) - 22 + hidden  # of the directory that Python reads
    more = b""
    if zip64:
        more = struct.pack("<IQHHIIQQQQ", 0x06064b50, 44, 45, 45, 0, 0, 1, 1, len(directory), start) + struct.pack("<IIQI", 0x07064b50, 0, start + len(directory), 1)
        shift = 0
    else:
        struct.pack_into("<I", end, 12, len(directory))
        shift = start - seen
    entry = bytearray(directory)
    struct.pack_into("<I", entry, 42, len(plain) - 22 - shift)
    out = plain[:-22] + bad[:hidden] + bytes(entry) + more + bytes(end)
    with zipfile.ZipFile(io.BytesIO(out)) as z:
        assert z.read("a.pkl") == evil
    return out


put("danger-two-directories.zip", two_faces(False))
put("danger-two-directories-64.zip", two_faces(True))
comment = zipped(a=evil)
put("danger-behind-comment.bin", b"\0" * 100 + comment[:-2] + b"\xff\xff" + b"cut")

# A tar archive of before there was a magic, which Python reads all the same.
b = io.BytesIO()
with tarfile.open(fileobj=b, mode="w", format=tarfile.USTAR_FORMAT) as t:
    i = tarfile.TarInfo("storages")
    i.size = len(evil)
    t.addfile(i, io.BytesIO(evil))
v7 = bytearray(b.getvalue())
v7[257:265] = b"\0" * 8
v7[148:156] = b" " * 8
v7[148:156] = b"%06o\0 " % sum(v7[:512])
assert tarfile.open(fileobj=io.BytesIO(bytes(v7)), mode="r:").extractfile("storages").read() == evil
put("danger-tar-v7.pt", bytes(v7))
v7[148:156] = b"0o1_" + b"%04o" % (sum(v7[:148]) + sum(v7[156:512]) + 8 * 32 - 0o10000) if 0o10000 <= sum(v7[:148]) + sum(v7[156:512]) + 256 < 0o20000 else v7[148:156]
assert tarfile.open(fileobj=io.BytesIO(bytes(v7)), mode="r:").extractfile("storages").read() == evil
put("danger-tar-v7-python.pt", bytes(v7))

# joblib reads one stream of zlib after another, and knows lzma by two bytes.
put("danger-zlib-twice.joblib", zlib.compress(b"\x80\x04N0") + zlib.compress(evil[2:]))
put("known-zlib-once.joblib", zlib.compress(pickle.dumps({"a": 1}, 4)))
import lzma
alone = lzma.compress(evil, format=lzma.FORMAT_ALONE, filters=[{"id": lzma.FILTER_LZMA1, "dict_size": 4096}])
assert alone[:3] == b"\x5d\x00\x10"
put("danger-lzma.joblib", alone)

# An array of objects says so in many ways.
for n, header in enumerate([b"{\"descr\": \"|O\", 'fortran_order': False, 'shape': (1,)}", b"{'descr': 'object', 'fortran_order': False, 'shape': (1,)}", b"{'d\\x65scr': '\\x4f', 'fortran_order': False, 'shape': (1,)}"]):
    put(f"danger-descr-{n}.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + evil)
put("data-numbers.npy", b"\x93NUMPY\x01\x00\x36\x00{'descr': '<f4', 'fortran_order': False, 'shape': (1,)}" + b"\n" + b"\0\0\x80\x3f")

put("code-lambda-space.keras", zipped(config__json=b' \n{"layers": [{"class_name": "Lambda", "config": {}}]}'))
put("code-lambda-escaped.keras", zipped(config__json=b'{"layers": [{"class_name": "\\u004cambda", "config": {}}]}'))
put("code-lambda-function.keras", zipped(config__json=b'{"layers": [{"class_name": "Dense", "config": {"activation": {"class_name": "__lambda__", "config": {}}}}]}'))
put("data-escaped.json", b'{"a": "\\u003cb\\u003e \\u00e9 \\u2028"}')
put("code-lambda-block.h5", b"\0" * 2048 + b"\x89HDF\r\n\x1a\n" + b"\0" * 100 + b'{"class_name":"Lambda"}')
# A loader called a name before it found that the rest is broken; a pickle in bytes is one that nobody sees.
put("danger-broken-unknown.pkl", b"cown\nfunction\n(tR\xff")
put("code-nested.pkl", b"\x80\x02ctorch.storage\n_load_from_bytes\nC" + bytes([len(evil)]) + evil + b"\x85R.")

# What is no pickle although it begins like one.
put("data-labels.txt", b"cat\ndog\nmouse\n")
put("data-cos.txt", b"cos\nsystem\nsin\n")
put("data-math.md", b"x^2 + y^2\n" * 10)
put("data-yaml.yaml", b"artifact_path: model\nflavors:\n  python_function: {}\n")
put("data-number.txt", b"I1\n.")
put("data-n.txt", b"N.N.N.")
put("data-empty", b"")
put("data-mz.txt", b"MZ is not a program" * 10)
put("data-tensor.bin", b"\x80\x02\x3f\x80" * 1000)
put("data-onnx.onnx", b"\x08\x08\x12\x07pytorch" + bytes(range(256)) * 100)

if len(sys.argv) > 2 and sys.argv[2] == "sklearn":
    import cloudpickle, joblib, numpy as np
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer, StandardScaler

    x, y = np.random.rand(50, 3), np.array(["a", "b"] * 25, dtype=object)
    lr = make_pipeline(StandardScaler(), LogisticRegression()).fit(x, y)
    rf = RandomForestClassifier(5).fit(x, y)
    for name, m in {"lr": lr, "rf": rf}.items():
        for p in range(2, 6):
            put(f"known-{name}-p{p}.pkl", pickle.dumps(m, p))
        put(f"known-{name}-cloud.pkl", cloudpickle.dumps(m))
        for compress in [0, 3, ("gzip", 3), ("bz2", 3)]:
            kind = compress[0] if isinstance(compress, tuple) else compress
            joblib.dump(m, os.path.join(out, f"known-{name}-{kind}.joblib"), compress=compress)
        joblib.dump(m, os.path.join(out, f"danger-{name}-xz.joblib"), compress=("xz", 3))
    joblib.dump([x, np.arange(3), Evil(), y], os.path.join(out, "danger-behind-arrays.joblib"))
    joblib.dump([x, np.array([Evil()], dtype=object)], os.path.join(out, "danger-in-array.joblib"))
    joblib.dump([np.asfortranarray(x), np.array("x"), np.array(["ab", "c"]), np.array([b"x"]), np.zeros(0), np.zeros((2, 3), "i1"), x > 1, np.array([1j])], os.path.join(out, "known-arrays.joblib"))
    # Who loads this without joblib goes on with the memo of the pickle around the array.
    names = b"\x8c\x02os\x940\x8c\x06system\x940"
    inner = b"\x80\x04\x8c\x0bcollections\x940\x8c\x0bOrderedDict\x940h\x00h\x01\x93)R."
    wrapper = pickle.dumps(joblib.numpy_pickle.NumpyArrayWrapper(np.ndarray, (1,), "C", np.dtype("O"), False, None), 2)
    wrapper = wrapper[2:-1].replace(b"q\x00", b"q\x10").replace(b"q\x01", b"q\x11")
    put("danger-two-memos.joblib", b"\x80\x04" + names + wrapper + inner + b".")
    put("code-lambda.pkl", cloudpickle.dumps(FunctionTransformer(lambda v: v)))
    np.save(os.path.join(out, "danger-objects.npy"), np.array([Evil(), 1], dtype=object), allow_pickle=True)
    np.save(os.path.join(out, "data-floats.npy"), x)
    np.savez(os.path.join(out, "danger-objects.npz"), a=x, b=np.array([Evil()], dtype=object))
    np.savez_compressed(os.path.join(out, "data-floats.npz"), a=x, b=np.zeros(100000))

if len(sys.argv) > 2 and sys.argv[2] == "torch":
    import torch

    m = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU())
    for legacy in (False, True):
        torch.save(m.state_dict(), os.path.join(out, f"known-state-{legacy}.pt"), _use_new_zipfile_serialization=not legacy)
        torch.save(m, os.path.join(out, f"known-module-{legacy}.pt"), _use_new_zipfile_serialization=not legacy)
        torch.save({"m": m, "x": Evil()}, os.path.join(out, f"danger-{legacy}.pt"), _use_new_zipfile_serialization=not legacy)
