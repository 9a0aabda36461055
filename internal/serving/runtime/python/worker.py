"""The process of a Python model, which Falaj starts confined in its environment.

The model's files are below the directory that is the first argument. What is
asked comes over the standard input and is answered over the standard output, in
the messages of internal/serving/runtime/child: a byte that says what it is, then
its parts; numbers have eight bytes in the machine's order, texts begin with their
length, tensors are raw. Nothing that comes is unpickled or evaluated, and each
size is bounded before there is room made for it.

It needs the standard library and numpy.
"""

import importlib
import importlib.util
import json
import math
import os
import re
import struct
import sys

MAX_PORTS, MAX_NAME, MAX_RANK, MAX_ELEMENTS, MAX_COLUMNS = 1024, 1024, 32, 1 << 28, 1 << 16  # as serving/runtime has them
MAX_TEXT, MAX_REQUEST, MAX_ANSWER = 8 << 10, 1 << 32, 512 << 20
MAX_MODEL = 1 << 40

# By their number in messages.
DATATYPES = ("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "BF16", "FP32", "FP64", "BYTES")


class Broken(Exception):
    """What came is not the protocol: the process ends."""


class Refused(Exception):
    """What somebody hears: of a kind of Falaj's errors, with a hint, and with data of theirs."""

    def __init__(self, kind, message, hint="", data=""):
        super().__init__(message)
        self.kind, self.message, self.hint, self.data = kind, message, hint, data


class Spec:
    """An input or output. -1 is a dimension that varies; no shape, None, is any number of them."""

    def __init__(self, name, datatype, shape, binary=False):
        self.name, self.datatype, self.shape, self.binary = name, datatype, shape, binary
        self.columns = []  # the names of its columns, where the model knows them


def dtype_of(datatype):
    """The numpy type of a datatype. BF16 is given as float32, BYTES as objects of bytes."""
    if datatype == "BYTES":
        return np.dtype(object)
    names = {"BOOL": "bool", "FP16": "float16", "BF16": "float32", "FP32": "float32", "FP64": "float64"}
    return np.dtype(names.get(datatype, datatype.lower()))


def datatype_of(dtype):
    """The datatype of a numpy type; None when it has none."""
    dtype = np.dtype(dtype)
    if dtype.kind in "SUO":
        return "BYTES"
    for name in DATATYPES:
        if name not in ("BF16", "BYTES") and dtype_of(name) == dtype:
            return name
    return None


# Messages.


class Reader:
    def __init__(self, file):
        self.file = file

    def exactly(self, n):
        b = self.file.read(n)
        if len(b) != n:
            raise EOFError
        return b

    def number(self, most):
        (v,) = struct.unpack("=Q", self.exactly(8))
        if v > most:
            raise Broken("a number where at most %d may be" % most)
        return v

    def text(self, most):
        return self.exactly(self.number(most))

    def name(self):
        return self.text(MAX_NAME).decode("utf-8", "surrogateescape")

    def load(self):
        """Reads the first message. What it says of how to load is in the environment, too."""
        if self.exactly(1) != b"L":
            raise Broken("another message where a model belongs")
        self.text(1 << 20)
        if self.number(MAX_MODEL):
            raise Broken("a file where a directory has them")

    def infer(self):
        wanted = [self.name() for _ in range(self.number(MAX_PORTS))]
        left, inputs = MAX_REQUEST, {}
        for _ in range(self.number(MAX_PORTS)):
            name, value, size = self.tensor(left)
            left -= size
            inputs[name] = value
        return wanted, inputs

    def tensor(self, left):
        name = self.name()
        kind = self.exactly(1)[0]
        if kind >= len(DATATYPES):
            raise Broken("a datatype that there is not")
        shape = tuple(self.number(MAX_ELEMENTS) for _ in range(self.number(MAX_RANK)))
        count = math.prod(shape)
        datatype = DATATYPES[kind]
        size = count * (16 if datatype == "BYTES" else 2 if datatype == "BF16" else dtype_of(datatype).itemsize)
        if count > MAX_ELEMENTS or size > left:
            raise Broken("a tensor of too many elements")
        if datatype == "BYTES":
            words = []
            for _ in range(count):
                words.append(self.text(left - size))
                size += len(words[-1])
            value = np.empty(count, object)
            value[:] = words
        elif datatype == "BF16":
            value = (self.numbers(count, np.uint16).astype(np.uint32) << 16).view(np.float32)
        elif datatype == "BOOL":
            value = self.numbers(count, np.uint8)
            if count and value.max() > 1:
                raise Broken("a bool that is neither")
            value = value.view(bool)
        else:
            value = self.numbers(count, dtype_of(datatype))
        return name, value.reshape(shape), size

    def numbers(self, count, dtype):
        """Reads into an array, for which room is used as it comes: the kernel has none for pages of zeros."""
        value = np.empty(count, dtype)
        to = memoryview(value.view(np.uint8)) if count else memoryview(b"")
        at = 0
        while at < len(to):
            n = self.file.readinto(to[at:])
            if not n:
                raise EOFError
            at += n
        return value


class Writer:
    def __init__(self, file):
        self.file = file

    def number(self, v):
        self.file.write(struct.pack("=Q", v))

    def text(self, b):
        if isinstance(b, str):
            b = b.encode("utf-8", "surrogateescape")
        self.number(len(b))
        self.file.write(b)

    def datatype(self, name):
        self.file.write(bytes([DATATYPES.index(name)]))

    def loaded(self, platform, inputs, outputs):
        self.file.write(b"M")
        self.text(platform)
        for specs in (inputs, outputs, ()):  # no model of Python has optional inputs
            self.number(len(specs))
            for s in specs:
                self.text(s.name)
                self.datatype(s.datatype)
                self.number(int(s.binary))
                self.number(len(s.columns))
                for name in s.columns:
                    self.text(name)
                if s.shape is None:
                    self.number(0)
                    continue
                self.number(len(s.shape) + 1)
                for d in s.shape:
                    self.number(d + 1)
        self.file.flush()

    def answer(self, number, outputs):
        self.file.write(b"A")
        self.number(number)
        self.number(len(outputs))
        for spec, value in outputs:
            self.text(spec.name)
            self.datatype(spec.datatype)
            self.number(value.ndim)
            for d in value.shape:
                self.number(d)
            if spec.datatype == "BYTES":
                for word in value.flat:
                    self.text(word)
            elif value.size:
                self.file.write(memoryview(value.reshape(-1).view(np.uint8)))
        self.file.flush()

    def fault(self, number, refused):
        self.file.write(b"F")
        self.number(number)
        for text in (refused.kind, refused.message, refused.hint, refused.data):
            self.text(text.encode("utf-8", "replace")[:MAX_TEXT])
        self.file.flush()


# What a model gives, made what it said that it would give.


def sound(spec, value):
    """A value as the array that is sent, or why it cannot be."""

    def wrong(what):
        return Refused("unsupported", "the model's output %s is not what it says that it gives" % spec.name[:100], "", what)

    if spec.datatype == "BYTES":
        a = np.asarray(value, dtype=object)
        words = np.empty(a.size, object)
        for i, word in enumerate(a.flat):
            if isinstance(word, str):
                word = word.encode("utf-8", "surrogateescape")
            if not isinstance(word, bytes):
                raise wrong("an element is a %s, and neither bytes nor str" % type(word).__name__)
            words[i] = word
        a = words.reshape(a.shape)
    else:
        a, dtype = np.asarray(value), dtype_of(spec.datatype)
        if a.dtype.kind not in "biuf" or not np.can_cast(a.dtype, dtype, "same_kind") and a.size:
            raise wrong("it is of %s, which is no %s" % (a.dtype, spec.datatype))
        cast = a.astype(dtype, order="C", casting="unsafe", copy=False)
        if a.dtype.kind in "iu" and cast.dtype.kind in "iu" and not np.array_equal(a, cast):
            raise wrong("it has numbers that %s cannot hold" % spec.datatype)
        a = cast
        if spec.datatype == "BF16":
            a = half_of(a)
    if spec.shape is not None and (a.ndim != len(spec.shape) or any(d >= 0 and d != n for d, n in zip(spec.shape, a.shape))):
        raise wrong("it has the shape %s and not %s" % (list(a.shape), list(spec.shape)))
    if a.ndim > MAX_RANK or a.size > MAX_ELEMENTS:
        raise Refused("too_large", "the model's answer is too large", "Send fewer rows at once.")
    return a


def half_of(a):
    """The upper half of each float32, rounded to the nearest, of two to the even one."""
    flat = np.ascontiguousarray(a).reshape(-1)
    bits = flat.view(np.uint32).astype(np.uint64)
    bits += np.uint64(0x7FFF) + ((bits >> np.uint64(16)) & np.uint64(1))
    half = (bits >> np.uint64(16)).astype(np.uint16)
    half[np.isnan(flat)] = 0x7FC0
    return half.reshape(a.shape)


def size_of(outputs):
    total = 0
    for spec, value in outputs:
        total += sum(16 + len(w) for w in value.flat) if spec.datatype == "BYTES" else value.nbytes
    return total


# What a model is. Each kind has inputs and outputs, and run(inputs, wanted).


def specs_of(where, declared):
    """The specs of {"inputs": [{"name": …, "datatype": …, "shape": […]}, …], "outputs": …}."""

    def wrong(what):
        return Refused("invalid", "%s: %s" % (where, what), 'Write {"inputs": [{"name": "X", "datatype": "FP32", "shape": [-1, 4]}], "outputs": [...]}.')

    if not isinstance(declared, dict) or not set(declared) <= {"inputs", "outputs"}:
        raise wrong("it is no object of inputs and outputs")
    out = []
    for role in ("inputs", "outputs"):
        ports = declared.get(role, [])
        if not isinstance(ports, (list, tuple)) or len(ports) > MAX_PORTS or role == "outputs" and not ports:
            raise wrong("%s is no list of tensors" % role)
        specs = []
        for p in ports:
            if not isinstance(p, dict) or not set(p) <= {"name", "datatype", "shape"} or not isinstance(p.get("name"), str) or not p["name"]:
                raise wrong("one of the %s is no object of name, datatype and shape" % role)
            shape = p.get("shape")
            whole = isinstance(shape, (list, tuple)) and all(isinstance(d, int) and not isinstance(d, bool) and -1 <= d <= MAX_ELEMENTS for d in shape)
            if p.get("datatype") not in DATATYPES:
                raise wrong("%.100s has no datatype of %s" % (p["name"], ", ".join(DATATYPES)))
            if shape is not None and not (whole and len(shape) <= MAX_RANK):
                raise wrong("the shape of %.100s is no list of sizes, -1 for any" % p["name"])
            if len(p["name"].encode("utf-8", "replace")) > MAX_NAME or "\0" in p["name"] or p["name"] in [s.name for s in specs]:
                raise wrong("%.100r is not a valid name, or appears twice" % p["name"])
            specs.append(Spec(p["name"], p["datatype"], None if shape is None else list(shape)))
        out.append(specs)
    return out


def declared_in(path):
    """What falaj.json says; None when there is none."""
    file = os.path.join(path, "falaj.json")
    if not os.path.exists(file):
        return None
    try:
        with open(file, encoding="utf-8") as f:
            said = json.load(f)
    except (ValueError, RecursionError) as e:
        raise Refused("invalid", "falaj.json is no JSON: %s" % e)
    return specs_of("falaj.json", said)


class Function:
    """predict.py: load(path), predict(model, inputs), and signature(model) where no falaj.json says it."""

    platform = "python_function"

    def __init__(self, path):
        sys.path.insert(0, path)
        spec = importlib.util.spec_from_file_location("predict", os.path.join(path, "predict.py"))
        module = importlib.util.module_from_spec(spec)
        sys.modules["predict"] = module
        spec.loader.exec_module(module)
        for name in ("load", "predict"):
            if not callable(getattr(module, name, None)):
                raise Refused("invalid", "predict.py has no function %s" % name, "It needs load(path) and predict(model, inputs).")
        self.model, self.predict = module.load(path), module.predict
        specs = declared_in(path)
        if specs is None:
            if not callable(getattr(module, "signature", None)):
                raise Refused("invalid", "nothing says what the model takes and gives", "Put a falaj.json beside predict.py, or a function signature(model) into it.")
            specs = specs_of("signature(model) of predict.py", module.signature(self.model))
        self.inputs, self.outputs = specs

    def run(self, inputs, wanted):
        out = self.predict(self.model, inputs)
        if not isinstance(out, dict):
            raise Refused("unsupported", "predict gave a %s and no dict of arrays" % type(out).__name__)
        return out


class Estimator:
    """A scikit-learn estimator or pipeline in MLflow's format: MLmodel and the file that it names."""

    platform = "python_sklearn"

    def __init__(self, path):
        with open(os.path.join(path, "MLmodel"), encoding="utf-8") as f:
            said = yaml_of(f.read(1 << 20))
        flavors = said.get("flavors") or {}
        flavor = flavors.get("sklearn") if isinstance(flavors, dict) else None
        if not isinstance(flavor, dict):
            raise Refused("invalid", "the MLmodel has no flavor sklearn, but %s" % ", ".join(sorted(flavors))[:200],
                          "Put a predict.py beside it, whose load(path) loads it: with mlflow in the environment, mlflow.pyfunc.load_model(path).")
        code = flavor.get("code") or (flavors.get("python_function") or {}).get("code")
        if isinstance(code, str) and code not in ("", "null"):
            sys.path.insert(0, os.path.join(path, code))
        self.model = unpickled(os.path.join(path, flavor.get("pickled_model") or "model.pkl"), flavor.get("serialization_format") or "pickle")
        if not callable(getattr(self.model, "predict", None)):
            raise Refused("invalid", "the model is a %s, which has no predict" % type(self.model).__name__, "Put a predict.py beside MLmodel.")
        self.columns = names_of(self.model)  # of the table that it was trained on
        self.dates = set()  # inputs that are datetime columns
        self.scoring = str((flavors.get("python_function") or {}).get("predict_fn") or "predict")  # what MLflow's server calls
        if not callable(getattr(self.model, self.scoring, None)):
            raise Refused("invalid", "MLmodel names the predict_fn %.100s, which a %s has not" % (self.scoring, type(self.model).__name__),
                          "Log the model again with a pyfunc_predict_fn that it has, or put a predict.py beside MLmodel.")
        specs = declared_in(path)
        self.inputs = specs[0] if specs else self.signature(said.get("signature"))
        if len(self.inputs) == 1 and self.columns:
            shape = self.inputs[0].shape
            if shape is not None and len(shape) == 2 and shape[1] in (-1, len(self.columns)):
                self.inputs[0].columns = self.columns
        self.outputs = specs[1] if specs else self.gives()
        self.predicted = [s for s in self.outputs if s.name != "probabilities"]
        if len(self.predicted) < len(self.outputs) and not callable(getattr(self.model, "predict_proba", None)):
            raise Refused("invalid", "the output probabilities is declared, and the model is a %s, which has no predict_proba" % type(self.model).__name__,
                          "Give the output that predict answers another name.")
        if len(self.predicted) > 1:
            try:  # a row of zeros says how many it gives
                said = self.predict(self.table(self.zeros()))
            except Exception:  # it does not take it; then it is seen when it is asked
                return
            self.columns_of(said)

    def predict(self, x):
        """What outputs other than probabilities have: of predict, or of the method that MLmodel names in its place."""
        return getattr(self.model, "predict" if self.scoring == "predict_proba" else self.scoring)(x)

    def columns_of(self, said):
        """What predict gave, by output: all of it is one, and each column one of several."""
        if len(self.predicted) == 1:
            return {self.predicted[0].name: said}
        said = np.asarray(said)
        if said.ndim != 2 or said.shape[1] != len(self.predicted):
            raise Refused("invalid", "%d outputs are declared beside probabilities, and predict gives one of the shape %s" % (len(self.predicted), list(said.shape)),
                          "Declare one output, or one for each column that predict gives; or put a predict.py beside MLmodel.")
        return {s.name: said[:, [i]] if s.shape is not None and len(s.shape) == 2 else said[:, i] for i, s in enumerate(self.predicted)}

    def signature(self, said):
        inputs = said.get("inputs") if isinstance(said, dict) else None
        if not isinstance(inputs, str) or inputs in ("", "null"):
            n = getattr(self.model, "n_features_in_", None)
            if n is None:
                raise Refused("invalid", "nothing says what the model takes", "Log it with a signature, or put a falaj.json beside MLmodel.")
            return [Spec("X", "FP64", [-1, int(n)])]
        try:
            ports = json.loads(inputs)
            return [self.port(p, len(ports)) for p in ports]
        except (ValueError, TypeError, KeyError, AttributeError) as e:
            raise Refused("invalid", "the signature of MLmodel is none: %s" % e, "Put a falaj.json beside it.")

    def port(self, p, of):
        name = p.get("name") or ("X" if of == 1 else None)
        if name is None:
            raise ValueError("a column has no name")
        if p["type"] == "tensor":
            t = p["tensor-spec"]
            kind, shape = datatype_of(np.dtype(t["dtype"])), [int(d) for d in t["shape"]]
            if kind is None or min(shape, default=0) < -1:
                raise ValueError("%s is of %s and the shape %s" % (name, t["dtype"], shape))
            return Spec(name, kind, shape)
        of = {"boolean": "BOOL", "integer": "INT32", "long": "INT64", "float": "FP32", "double": "FP64", "string": "BYTES", "binary": "BYTES", "datetime": "BYTES"}
        if p["type"] not in of:
            raise ValueError("column %s is a %s" % (name, p["type"]))
        if p["type"] == "datetime":
            self.dates.add(name)
        return Spec(name, of[p["type"]], [-1], p["type"] == "binary")

    def gives(self):
        """Classifiers give label and probabilities, others variable, as skl2onnx has it; logged with another predict_fn they give what that does."""
        classes = getattr(self.model, "classes_", None)
        if self.scoring not in ("predict", "predict_proba"):
            classes = None
        if isinstance(classes, list):  # of several outputs
            kind = datatype_of(np.result_type(*[np.asarray(c).dtype for c in classes])) or "INT64"
            return [Spec("label", kind, [-1, len(classes)])]
        if classes is not None and hasattr(self.model, "predict"):
            out = [Spec("label", datatype_of(np.asarray(classes).dtype) or "INT64", [-1])]
            if hasattr(self.model, "predict_proba"):
                out.append(Spec("probabilities", "FP64", [-1, len(classes)]))
            return out[1:] if self.scoring == "predict_proba" else out
        kind, shape = "FP64", [-1]
        try:  # a row of zeros says how many it gives
            said = np.asarray(self.predict(self.table(self.zeros())))
            kind, shape = datatype_of(said.dtype) or kind, [-1, *said.shape[1:]]
        except Exception:  # it does not take it; then it is a number for each row
            pass
        return [Spec("variable", kind, shape)]

    def table(self, inputs):
        """What predict takes: an array of one tensor, a table of columns."""
        values = [inputs[s.name] for s in self.inputs]
        names = [s.name for s in self.inputs]
        values = [v if v.dtype != object or s.binary else dates(s.name, texts(s.name, v)) if s.name in self.dates else texts(s.name, v) for s, v in zip(self.inputs, values)]
        if len(values) == 1 and (values[0].ndim != 1 or self.inputs[0].shape is None or len(self.inputs[0].shape) > 1):
            x = values[0]
            if self.columns is None or x.ndim != 2 or x.shape[1] != len(self.columns):
                return x
            frame = data_frame()
            return x if frame is None else frame(x, columns=self.columns)
        for name, v in zip(names, values):
            if v.ndim > 1 and v.size != len(v):
                raise Refused("invalid", "input %.100s has the shape %s, and a column of several has one value for a row" % (name, list(v.shape)))
        values = [v.reshape(len(v)) if v.ndim > 1 else v for v in values]
        if self.columns and sorted(self.columns) == sorted(names):  # in the order of training, whatever that of the signature is
            by_name = dict(zip(names, values))
            names, values = self.columns, [by_name[name] for name in self.columns]
        frame = data_frame()
        if frame is not None:
            return frame(dict(zip(names, values)))
        if 0 < sum(v.dtype.kind == "M" for v in values) < len(values):
            raise Refused("invalid", "a table of dates and others needs pandas", "Add pandas to the environment's requirements.")
        if any(v.dtype == object for v in values):
            return np.stack([v.astype(object) for v in values], axis=1)
        return np.stack(values, axis=1)

    def run(self, inputs, wanted):
        rows = {v.shape[0] for v in inputs.values() if v.ndim}
        if rows == {0}:  # which no estimator takes
            return {s.name: np.zeros([0] + [max(d, 0) for d in (s.shape or [0])[1:]], dtype_of(s.datatype)) for s in self.outputs}
        x, out = self.table(inputs), {}
        if any(name != "probabilities" for name in wanted):  # once, for all of them
            out.update(self.columns_of(self.predict(x)))
        if "probabilities" in wanted:
            out["probabilities"] = self.model.predict_proba(x)
        return {name: out[name] for name in wanted}


    def zeros(self):
        """A row of zeros, of which dates are the first of Unix."""
        return {s.name: zeros(s) if s.name not in self.dates else np.full(zeros(s).shape, b"1970-01-01", object) for s in self.inputs}


def names_of(model):
    """The names of the columns that a model was trained on; None where it does not know any.

    LightGBM and CatBoost number the columns that had no names."""
    for attribute in ("feature_names_in_", "feature_names_"):
        try:
            names = [str(c) for c in getattr(model, attribute)]
        except Exception:  # it has none, or is not asked for them this way
            continue
        numbered = any(names == [form % i for i in range(len(names))] for form in ("Column_%d", "%d", "f%d"))
        sound = len(set(names)) == len(names) and all(0 < len(name.encode("utf-8", "replace")) <= MAX_NAME for name in names)
        if names and not numbered and sound and len(names) <= MAX_COLUMNS:
            return names
    return None


def zeros(s):
    value = np.zeros([1 if d < 0 else d for d in (s.shape if s.shape is not None else [1])], dtype_of(s.datatype))
    return value if s.datatype != "BYTES" else np.full(value.shape, b"", object)


def texts(name, value):
    out = np.empty(value.size, object)
    for i, w in enumerate(value.flat):
        try:
            out[i] = w.decode("utf-8") if isinstance(w, bytes) else w
        except UnicodeDecodeError:
            raise Refused("invalid", "input %.100s, element %d is not UTF-8, and the column is text" % (name, i),
                          "Log the model with a signature in which the column is binary, or put a predict.py beside MLmodel, which gets bytes.")
    return out.reshape(value.shape)


DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,9})?)?)?Z?")


def dates(name, value):
    """Texts in ISO 8601 as datetime64[ns], which MLflow's datetime columns are; NaT is a missing one."""
    out = np.empty(value.shape, "datetime64[ns]")
    for i, word in enumerate(value.flat):
        try:
            if word != "NaT" and not DATE.fullmatch(word):
                raise ValueError
            date = np.datetime64(word.rstrip("Z"))
            out.flat[i] = date
            if word != "NaT" and out.flat[i].astype(date.dtype) != date:  # numpy is silent about what nanoseconds cannot hold
                raise ValueError
        except ValueError:
            raise Refused("invalid", "input %.100s, element %d is no date" % (name, i),
                          "Write dates as 2026-02-03 or 2026-02-03T10:30:00.5, from 1678 to 2261 and in UTC instead of another zone; NaT is a missing one.", "it is %.80r" % word)
    return out


def data_frame():
    try:
        return importlib.import_module("pandas").DataFrame
    except ImportError:
        return None


def unpickled(file, how):
    if how == "skops":
        io = importlib.import_module("skops.io")
        return io.load(file, trusted=io.get_untrusted_types(file=file))
    with open(file, "rb") as f:
        if how == "joblib":
            return importlib.import_module("joblib").load(f)
        return importlib.import_module("pickle" if how == "pickle" else "cloudpickle").load(f)


def signature_of(d):
    """The shape of a tensor as its details have it: -1 varies."""
    shape = d.get("shape_signature")
    return [int(n) for n in (d["shape"] if shape is None or len(shape) == 0 else shape)]


class Lite:
    """model.tflite, by TensorFlow Lite under whichever of its names the environment has it."""

    platform = "python_tflite"

    def __init__(self, path):
        for name in ("ai_edge_litert.interpreter", "tflite_runtime.interpreter", "tensorflow.lite.python.interpreter"):
            try:
                module = importlib.import_module(name)
                break
            except ModuleNotFoundError:
                continue
        else:
            raise Refused("invalid", "the environment has no TensorFlow Lite", "Add ai-edge-litert to its requirements.")
        self.lite = module.Interpreter(model_path=os.path.join(path, "model.tflite"), num_threads=int(os.environ.get("OMP_NUM_THREADS", "1")))
        self.into = {d["name"]: d for d in self.lite.get_input_details()}
        self.outof = {d["name"]: d for d in self.lite.get_output_details()}
        self.shapes = {name: list(d["shape"]) for name, d in self.into.items()}
        open_ended = any(n < 0 for d in self.into.values() for n in signature_of(d))
        try:
            self.lite.allocate_tensors()
        except (RuntimeError, ValueError):
            if not open_ended:
                raise
            self.shapes = {}  # the file has ones where sizes vary, which need not fit together
        specs = declared_in(path)
        self.inputs, self.outputs = specs or ([self.port(d) for d in self.into.values()], [self.port(d, open_ended) for d in self.outof.values()])

    def port(self, d, open_ended=False):
        """The spec of a tensor. An output of which the file does not say what varies varies with what the inputs do."""
        kind = datatype_of(d["dtype"])
        if kind is None:
            raise Refused("unsupported", "tensor %.100s of the model is of %s" % (d["name"], d["dtype"]))
        shape = signature_of(d)
        if open_ended and not any(n < 0 for n in shape):
            shape = [-1] * len(shape) if shape else None
        return Spec(d["name"], kind, shape)

    def run(self, inputs, wanted):
        changed = [name for name, value in inputs.items() if list(value.shape) != self.shapes.get(name)]
        if changed:
            self.shapes = {}  # until it is known that the model takes these
            for name, value in inputs.items():
                self.lite.resize_tensor_input(self.into[name]["index"], list(value.shape))
            self.lite.allocate_tensors()
            self.shapes = {name: list(value.shape) for name, value in inputs.items()}
        for name, value in inputs.items():
            self.lite.set_tensor(self.into[name]["index"], value)
        self.lite.invoke()
        return {name: self.lite.get_tensor(self.outof[name]["index"]) for name in wanted}


def yaml_of(text):
    """The mappings of a document as MLflow writes them: block style, one key a line, plain or quoted scalars. Lists are left out."""
    root, lines, i = {}, text.split("\n"), 0
    stack = [(-1, root)]
    while i < len(lines):
        line = lines[i]
        i += 1
        body = line.strip()
        if not body or body.startswith(("#", "- ", "---")) or body == "-":
            continue
        indent = len(line) - len(line.lstrip(" "))
        key, colon, value = body.partition(":")
        if not colon or value and not value.startswith(" "):
            continue
        value = value.strip()
        while stack[-1][0] >= indent:
            stack.pop()
        into = stack[-1][1]
        if not value:
            stack.append((indent, into.setdefault(key.strip("'\""), {})))
            continue
        if value[0] in "'\"":
            while not closed(value) and i < len(lines):  # it goes on: a line break is a space, or nothing after a backslash
                more = lines[i].strip()
                i += 1
                if value[0] == '"' and value.endswith("\\") and not value.endswith("\\\\"):
                    more = more[1:] if more.startswith("\\ ") else more
                    value = value[:-1] + more
                else:
                    value += " " + more
            if not closed(value):
                raise Refused("invalid", "MLmodel has a text that does not end")
            value = value[1:-1].replace("''", "'") if value[0] == "'" else unescaped(value[1:-1])
        into[key.strip("'\"")] = value
    return root


ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", re.DOTALL)
ESCAPED = {"0": "\0", "a": "\a", "b": "\b", "t": "\t", "\t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r", "e": "\x1b", " ": " ", '"': '"', "/": "/",
           "\\": "\\", "N": "\x85", "_": "\xa0", "L": "\u2028", "P": "\u2029"}


def unescaped(text):
    """The text of a double-quoted scalar of YAML 1.1 (5.7), and of JSON, whose pairs of surrogates are one letter."""

    def one(m):
        code = m[1] or m[2] or m[3]
        if code is None and m[4] not in ESCAPED or code and int(code, 16) > 0x10FFFF:
            raise Refused("invalid", "MLmodel has the escape %.20s, which YAML has not" % m[0])
        return chr(int(code, 16)) if code else ESCAPED[m[4]]

    return ESCAPE.sub(one, text).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def closed(value):
    """Whether a quoted scalar ends where the value does."""
    rest = value[1:]
    if value[0] == "'":  # two of them are one within
        return (len(rest) - len(rest.rstrip("'"))) % 2 == 1
    end = rest[:-1]
    return rest.endswith('"') and (len(end) - len(end.rstrip("\\"))) % 2 == 0


def model_in(path):
    for file, kind in (("predict.py", Function), ("MLmodel", Estimator), ("model.tflite", Lite)):
        if os.path.exists(os.path.join(path, file)):
            return kind(path)
    raise Refused("invalid", "there is no predict.py, no MLmodel and no model.tflite among the model's files")


def load(path):
    """The model, or Refused with whatever kept it from loading. It has seen no row."""
    try:
        return model_in(path)
    except Refused:
        raise
    except ModuleNotFoundError as e:
        raise Refused("invalid", "loading the model: %s" % e, "Add the package to the environment's requirements.")
    except MemoryError:
        raise Refused("exhausted", "loading the model takes more memory than its process may have", "Set spec.runtime.memory.")
    except Exception as e:
        raise Refused("invalid", "loading the model: %s%s" % (where(e), e))


def where(e):
    """The kind of an error, and the last line of the model's own files that it came by."""
    line = ""
    trace = e.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if name.startswith(sys.argv[-1] + "/"):
            line = "%s:%d: " % (name[len(sys.argv[-1]) + 1 :], trace.tb_lineno)
        trace = trace.tb_next
    return "%s%s: " % (line, type(e).__name__)


def asked(model, wanted, inputs):
    try:
        outputs = {s.name: s for s in model.outputs}
        for name in wanted:
            if name not in outputs:
                raise Refused("invalid", "the model has no output %.100s" % name)
        given = model.run(inputs, wanted)
        out = []
        for name in wanted:
            if name not in given:
                raise Refused("unsupported", "the model gave no output %.100s" % name)
            out.append((outputs[name], sound(outputs[name], given[name])))
        if size_of(out) > MAX_ANSWER:
            raise Refused("too_large", "the model's answer is too large", "Send fewer rows at once.")
        return out
    except Refused:
        raise
    except MemoryError:
        raise Refused("exhausted", "no memory to run the model")
    except Exception as e:  # of the model, or of what it was asked; what it says may have values of rows
        raise Refused("invalid", where(e).rstrip(": "), "", str(e))


def serve(model, reader, writer):
    while True:
        kind = reader.file.read(1)
        if not kind:
            return
        number = reader.number(1 << 63)
        if kind == b"C":  # it is over, or was never asked: one is asked at a time
            continue
        if kind != b"I":
            raise Broken("another message where a request belongs")
        wanted, inputs = reader.infer()
        try:
            out = asked(model, wanted, inputs)
        except Refused as e:
            writer.fault(number, e)
        else:
            writer.answer(number, out)


def main():
    # The channel is ours alone: what a model prints goes where errors go.
    reader = Reader(os.fdopen(os.dup(0), "rb", 64 << 10))
    writer = Writer(os.fdopen(os.dup(1), "wb", 64 << 10))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    try:
        reader.load()
        if no_numpy:
            raise Refused("invalid", "the environment has no numpy: %s" % no_numpy, "Add numpy to its requirements.")
        model = load(sys.argv[-1])
        writer.loaded(model.platform, model.inputs, model.outputs)
    except Refused as e:
        writer.fault(0, e)
        return
    try:
        serve(model, reader, writer)
    except EOFError:
        pass


no_numpy = None
try:
    import numpy as np
except ImportError as e:
    no_numpy = e

if __name__ == "__main__":
    main()
