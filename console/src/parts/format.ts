// Numbers and times as people read them. Pure.

const absent = '–';

/** A count with thin spaces: 1 234 567. */
export function count(n: number | null | undefined): string {
  return n == null || !Number.isFinite(n) ? absent : Math.round(n).toString().replace(/\B(?=(\d{3})+(?!\d))/g, '\u2009');
}

/** A number with at most so many significant digits, never in exponents that hide its size. */
export function number(n: number | null | undefined, digits = 3): string {
  if (n == null || !Number.isFinite(n)) return absent;
  if (n === 0) return '0';
  const size = Math.abs(n);
  if (size >= 1e15 || size < 1e-6) return n.toExponential(Math.max(0, digits - 1)).replace('-', '−').replace('e−', 'e-').replace('e+', 'e');
  const text = size >= 10 ** digits ? Math.round(n).toString() : Number(n.toPrecision(digits)).toString();
  const [whole = '', part] = text.replace('-', '−').split('.');
  return whole.replace(/\B(?=(\d{3})+(?!\d))/g, '\u2009') + (part ? `.${part}` : '');
}

/** With its sign, for differences. */
export const signed = (n: number, digits = 3) => (n > 0 ? '+' : '') + number(n, digits);

/** A share of one as percent. */
export function percent(share: number | null | undefined, digits = 0): string {
  if (share == null || !Number.isFinite(share)) return absent;
  const p = share * 100;
  if (p > 0 && p < 10 ** -digits / 2) return `< ${10 ** -digits} %`;
  return `${p.toFixed(digits)} %`;
}

/** Milliseconds. */
export function ms(n: number | null | undefined): string {
  if (n == null || !Number.isFinite(n)) return absent;
  return n >= 1000 ? `${number(n / 1000)} s` : n >= 1 ? `${number(n)} ms` : `${number(n * 1000, 2)} µs`;
}

/** Bytes, in the largest unit of which there is one. */
export function bytes(n: number | null | undefined): string {
  if (n == null || !Number.isFinite(n)) return absent;
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  for (; n >= 1024 && unit < units.length - 1; unit++) n /= 1024;
  return `${number(n)} ${units[unit]}`;
}

/** How long, in its two largest units. */
export function span(milliseconds: number): string {
  const s = Math.round(milliseconds / 1000);
  if (milliseconds < 1000) return `${Math.max(0, Math.round(milliseconds))} ms`;
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min${s % 60 ? ` ${s % 60} s` : ''}`;
  if (s < 86_400) return `${Math.floor(s / 3600)} h${Math.floor((s % 3600) / 60) ? ` ${Math.floor((s % 3600) / 60)} min` : ''}`;
  return `${Math.floor(s / 86_400)} d${Math.floor((s % 86_400) / 3600) ? ` ${Math.floor((s % 86_400) / 3600)} h` : ''}`;
}

export type Zone = 'utc' | 'local';

const pad = (n: number) => String(n).padStart(2, '0');

/** "2013-06-24 14:05:09" in the zone; the day alone for `date`. */
export function time(at: string | number | Date, zone: Zone, form: 'date' | 'minute' | 'second' = 'minute'): string {
  const d = new Date(at);
  if (Number.isNaN(d.getTime())) return absent;
  const u = zone === 'utc';
  const day = `${u ? d.getUTCFullYear() : d.getFullYear()}-${pad((u ? d.getUTCMonth() : d.getMonth()) + 1)}-${pad(u ? d.getUTCDate() : d.getDate())}`;
  if (form === 'date') return day;
  const clock = `${pad(u ? d.getUTCHours() : d.getHours())}:${pad(u ? d.getUTCMinutes() : d.getMinutes())}`;
  return `${day} ${clock}${form === 'second' ? `:${pad(u ? d.getUTCSeconds() : d.getSeconds())}` : ''}`;
}

/** "3 min ago", "in 2 h". */
export function ago(at: string | number, now: number): string {
  const d = now - new Date(at).getTime();
  if (Number.isNaN(d)) return absent;
  const size = Math.abs(d);
  const text =
    size < 45_000 ? 'just now' : size < 3_600_000 ? `${Math.max(1, Math.round(size / 60_000))} min` : size < 86_400_000 ? `${Math.round(size / 3_600_000)} h` : `${Math.round(size / 86_400_000)} d`;
  return size < 45_000 ? text : d < 0 ? `in ${text}` : `${text} ago`;
}
