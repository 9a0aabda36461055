// Puts what Vite built into internal/console/dist, compressed as well as it
// gets, and checks the size that the console may have.
import { createHash } from 'node:crypto';
import { mkdirSync, readFileSync, readdirSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { brotliCompressSync, constants, gzipSync } from 'node:zlib';

const budget = 350 * 1024; // bytes of all files, gzip
const from = fileURLToPath(new URL('../dist', import.meta.url));
const to = fileURLToPath(new URL('../../internal/console/dist', import.meta.url));

for (const name of readdirSync(to)) if (name !== '.gitignore') rmSync(join(to, name), { recursive: true });
let total = 0;
for (const name of readdirSync(from, { recursive: true }).sort()) {
  const file = join(from, name);
  if (!statSync(file).isFile()) continue;
  const bytes = readFileSync(file);
  const gz = gzipSync(bytes, { level: 9 });
  total += gz.length;
  mkdirSync(dirname(join(to, name)), { recursive: true });
  writeFileSync(join(to, name), bytes);
  if (bytes.length < 1024) continue;
  writeFileSync(join(to, name + '.gz'), gz);
  writeFileSync(
    join(to, name + '.br'),
    brotliCompressSync(bytes, { params: { [constants.BROTLI_PARAM_QUALITY]: 11, [constants.BROTLI_PARAM_SIZE_HINT]: bytes.length } }),
  );
}
const html = readFileSync(join(to, 'index.html'));
console.log(`  · console: ${Math.ceil(total / 1024)} KiB compressed, page ${createHash('sha256').update(html).digest('hex').slice(0, 12)}`);
if (total > budget) {
  console.error(`The console is larger than ${budget / 1024} KiB (gzip).`);
  process.exit(1);
}
