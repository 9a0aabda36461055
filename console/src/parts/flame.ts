// Stacks that py-spy wrote, as a tree, and where its frames are drawn. Pure. The
// text is the job's: nothing in it may keep the browser busy.

export interface Frame {
  name: string;
  where: string; // its file
  n: number; // samples in which it was there
  children: Frame[]; // most first
}

const deepest = 200; // frames of a stack
const most = 3000; // frames that are drawn
const narrowest = 0.003; // of the width

const prefix = 'process ';

/** The stack of a line, its samples, and the process it is of. As folded.go reads it: once from the left. */
function parse(text: string): { stack: string; n: number; process?: string } | undefined {
  const cut = text.lastIndexOf(' ');
  if (cut <= 0 || !/^\d{1,10}$/.test(text.slice(cut + 1))) return undefined;
  let at = 0;
  let process: string | undefined;
  while (text.startsWith(prefix, at)) {
    // A command line may have semicolons; it ends with a quote.
    const end = text.indexOf('";', at);
    const colon = text.indexOf(':', at);
    if (end < 0 || end >= cut || colon < 0 || colon - at > 30) return undefined;
    process = text.slice(at + prefix.length, colon);
    at = end + 2;
  }
  return { stack: text.slice(at, cut), n: Number(text.slice(cut + 1)), process };
}

/** A tree of all stacks of the first threads: those that do the work. Lines of one function are one frame. */
export function flame(folded: string): Frame {
  const all: { frames: string[]; n: number; first: boolean }[] = [];
  for (const text of folded.split('\n')) {
    const read = parse(text);
    if (!read?.stack) continue;
    const { stack, n, process } = read;
    const frames = stack.split(';');
    let first = true;
    if (frames[0]!.startsWith('thread (')) {
      const thread = frames.shift()!;
      first = thread.endsWith('MainThread') || (process != null && thread.startsWith(`thread (${process})`));
    }
    if (frames.length > 0) all.push({ frames, n, first });
  }
  const root: Frame = { name: 'all', where: '', n: 0, children: [] };
  const known = new Map<Frame, Map<string, Frame>>([[root, new Map()]]);
  const some = all.some((s) => s.first);
  for (const s of all) {
    if (some && !s.first) continue;
    let at = root;
    at.n += s.n;
    for (const text of s.frames.slice(0, deepest)) {
      const key = text.replace(/:\d{1,9}\)$/, ')'); // "step (train.py:6)" without its line
      let child = known.get(at)!.get(key);
      if (!child) {
        const cut = key.endsWith(')') ? key.indexOf(' (') : -1;
        child = cut < 0 ? { name: key, where: '', n: 0, children: [] } : { name: key.slice(0, cut), where: key.slice(cut + 2, -1), n: 0, children: [] };
        at.children.push(child);
        known.get(at)!.set(key, child);
        known.set(child, new Map());
      }
      at = child;
      at.n += s.n;
    }
  }
  sort(root);
  return root;
}

function sort(f: Frame) {
  f.children.sort((a, b) => b.n - a.n || a.name.localeCompare(b.name));
  f.children.forEach(sort);
}

export interface Box {
  path: Frame[]; // from the root to the frame
  from: number; // shares of the width
  width: number;
}

/** What is drawn when the last frame of a path is as wide as there is room: those before it, and all below it that can be seen. */
export function boxes(path: readonly Frame[]): Box[] {
  const out: Box[] = path.map((_, i) => ({ path: path.slice(0, i + 1), from: 0, width: 1 }));
  const whole = path.at(-1)!.n || 1;
  const below = (at: readonly Frame[], from: number) => {
    for (const c of at.at(-1)!.children) {
      const width = c.n / whole;
      if (width < narrowest || out.length >= most) break;
      const next = [...at, c];
      out.push({ path: next, from, width });
      below(next, from);
      from += width;
    }
  };
  below(path, 0);
  return out;
}
