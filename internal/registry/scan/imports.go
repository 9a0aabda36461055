package scan

import (
	"slices"
	"strings"
)

// dangerous are modules, and names of modules, that no model needs: they run programs,
// reach the file system, the network or memory, load code, or load pickles.
var dangerous = set(`
	os posix nt subprocess _posixsubprocess sys pty tty socket _socket socketserver ssl select shutil commands popen2
	runpy code codeop pdb bdb timeit cProfile profile pstats trace doctest unittest test importlib _frozen_importlib
	_frozen_importlib_external imp pkgutil zipimport zipapp ctypes _ctypes cffi _cffi_backend mmap multiprocessing
	_thread signal webbrowser antigravity ftplib http httplib urllib urllib2 urllib3 requests aiohttp httpx
	smtplib poplib imaplib nntplib telnetlib xmlrpc xmlrpclib asyncio pip ensurepip venv setuptools distutils
	pickle _pickle cPickle marshal shelve dbm tempfile glob fileinput linecache getpass atexit gc
	pydoc lib2to3 idlelib _pyrepl rlcompleter site sitecustomize turtle tkinter sqlite3 curses readline
	StringIO cStringIO thread SocketServer BaseHTTPServer SimpleHTTPServer CGIHTTPServer robotparser anydbm whichdb dumbdbm gdbm
	_pyio mailcap _osx_support _aix_support uu compileall py_compile modulefinder zipfile tarfile netrc
	_interpreters _xxsubinterpreters _testcapi gzip.open bz2.open lzma.open logging.FileHandler logging.handlers
	pwd grp syslog fcntl termios winreg msvcrt _winapi _io paramiko IPython pexpect psutil ptyprocess sh plumbum

	builtins.eval builtins.exec builtins.execfile builtins.compile builtins.open builtins.__import__ builtins.getattr
	builtins.setattr builtins.delattr builtins.globals builtins.locals builtins.vars builtins.input builtins.raw_input
	builtins.breakpoint builtins.exit builtins.quit builtins.apply builtins.file builtins.reload builtins.help
	builtins.map builtins.filter builtins.reduce
	io.open io.open_code io.FileIO codecs.open _codecs.open logging.config pathlib.os platform.popen platform._syscmd_ver
	operator.attrgetter operator.methodcaller _operator.attrgetter _operator.methodcaller functools.reduce _functools.reduce
	uuid._popen uuid._get_command_stdout types.ModuleType
	numpy.testing numpy.f2py numpy.distutils numpy.ctypeslib numpy.lib.npyio numpy.lib._npyio_impl
	numpy.load numpy.fromfile numpy.memmap numpy.loadtxt numpy.genfromtxt numpy.save numpy.savetxt numpy.DataSource
	scipy.io scipy.weave pandas.io pandas.read_pickle pandas.eval pandas.read_csv pandas.read_parquet pandas.read_json
	pandas.read_sql pandas.read_html pandas.HDFStore pandas.core.computation
	torch.load torch.save torch.hub torch.serialization torch.package torch.jit torch._inductor torch._dynamo torch.compile
	torch.utils.bottleneck torch.utils.cpp_extension torch.utils.collect_env torch.utils._config_module torch.utils.data.datapipes
	joblib.load joblib.dump joblib.numpy_pickle.load joblib.numpy_pickle.dump mlflow.projects
	dill.load dill.loads dill.load_session dill._dill.load dill._dill.loads
	cloudpickle.load cloudpickle.loads cloudpickle.cloudpickle.load cloudpickle.cloudpickle.loads
	cloudpickle.cloudpickle.subimport cloudpickle.subimport`)

// system are names that are dangerous wherever a path of attributes leads to them:
// numpy's os is os.
var system = set(`
	os posix nt subprocess sys pty socket shutil runpy importlib ctypes pickle _pickle cPickle marshal builtins __builtins__ __builtin__
	__globals__ __import__ __subclasses__ __code__ __loader__ __spec__ __dict__`)

// bringsCode makes functions and classes of what is in the pickle; one of PyTorch's loads
// a pickle that is bytes in it, and that nobody looks into.
var bringsCode = set(`cloudpickle dill types.FunctionType types.CodeType types.LambdaType torch.fx keras.layers.Lambda torch.storage._load_from_bytes`)

// known are modules whose classes are what models are made of.
var known = set(`
	sklearn scipy.sparse scipy.stats scipy.spatial scipy.interpolate xgboost lightgbm catboost statsmodels
	pandas.core pandas._libs pandas imblearn category_encoders torch.nn tokenizers spacy gensim prophet pmdarima
	numpy.random datetime decimal fractions uuid pathlib`)

// knownNames are functions, and names of small modules, that pickles of these use.
var knownNames = set(`
	builtins.set builtins.frozenset builtins.dict builtins.list builtins.tuple builtins.int builtins.long builtins.float builtins.complex
	builtins.bool builtins.str builtins.unicode builtins.bytes builtins.bytearray builtins.slice builtins.range builtins.xrange builtins.object
	builtins.NotImplemented builtins.Ellipsis
	collections.OrderedDict collections.defaultdict collections.Counter collections.deque
	copyreg._reconstructor copyreg.__newobj__ copyreg.__newobj_ex__ _codecs.encode
	numpy.dtype numpy.ndarray numpy.matrix numpy.core.multiarray._reconstruct numpy.core.multiarray.scalar numpy._core.multiarray._reconstruct
	numpy._core.multiarray.scalar numpy.core.numeric._frombuffer numpy._core.numeric._frombuffer numpy.ma.core._mareconstruct
	numpy.ma.core.MaskedArray numpy.float64 numpy.float32 numpy.float16 numpy.int64 numpy.int32 numpy.int16 numpy.int8 numpy.uint64 numpy.uint32
	numpy.uint16 numpy.uint8 numpy.bool_ numpy.bool numpy.str_ numpy.bytes_ numpy.datetime64 numpy.timedelta64
	numpy.random._pickle.__randomstate_ctor numpy.random._pickle.__generator_ctor numpy.random._pickle.__bit_generator_ctor
	joblib.numpy_pickle.NumpyArrayWrapper joblib.numpy_pickle.NDArrayWrapper
	pandas._libs.internals._unpickle_block pandas._libs.arrays.__pyx_unpickle_NDArrayBacked pandas.core.indexes.base._new_Index
	sklearn.tree._tree.Tree
	torch._utils._rebuild_tensor torch._utils._rebuild_tensor_v2 torch._utils._rebuild_parameter torch._utils._rebuild_parameter_with_state
	torch._utils._rebuild_qtensor torch._utils._rebuild_sparse_tensor torch._tensor._rebuild_from_type_v2 torch.Tensor torch.Size torch.device torch.dtype
	torch.FloatStorage torch.DoubleStorage torch.HalfStorage torch.BFloat16Storage torch.LongStorage torch.IntStorage torch.ShortStorage
	torch.CharStorage torch.ByteStorage torch.BoolStorage torch.storage._TypedStorage torch.storage.TypedStorage torch.storage.UntypedStorage
	torch.storage._load_from_bytes_ torch.float32 torch.float64 torch.float16 torch.bfloat16 torch.int64 torch.int32 torch.int16 torch.int8
	torch.uint8 torch.bool torch.jit._pickle.build_intlist torch.jit._pickle.build_doublelist torch.jit._pickle.build_boollist
	torch.jit._pickle.build_tensorlist torch.jit._pickle.restore_type_tag`)

func set(words string) map[string]bool {
	out := map[string]bool{}
	for w := range strings.FieldsSeq(words) {
		out[w] = true
	}
	return out
}

// named is whether a path, or one that it begins with, is in a set.
func named(in map[string]bool, parts []string) bool {
	for i := range parts {
		if in[strings.Join(parts[:i+1], ".")] {
			return true
		}
	}
	return false
}

// levelOf is what an import does. From protocol 4 on a name may lead over attributes.
func levelOf(module, name string) Level {
	switch module { // Python 2's names of these
	case "__builtin__", "__builtins__":
		module = "builtins"
	case "copy_reg":
		module = "copyreg"
	}
	full := module + "." + name
	parts := strings.Split(full, ".")
	behind := parts[1:] // of the outermost module; there a system module is somebody's attribute
	last := parts[len(parts)-1]
	switch {
	case knownNames[full]:
		return Known
	case named(dangerous, parts), slices.ContainsFunc(behind, func(p string) bool { return system[p] }):
		return Danger
	case named(bringsCode, parts):
		return Code
	case named(known, parts[:len(parts)-1]) && isClass(last):
		return Known
	}
	return Unknown
}

// isClass is whether a name is written as classes are.
func isClass(name string) bool {
	name = strings.TrimLeft(name, "_")
	return name != "" && name[0] >= 'A' && name[0] <= 'Z'
}
