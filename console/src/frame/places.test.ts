import { expect, test } from 'vitest';
import { lineageOf, linked, partsOf, pathOf, placeOf } from './places';

test.each([
  ['#/experiments/1/runs/run_01M8FM0D57CC279GA15T0PVW4K', 'run_01M8FM0D57CC279GA15T0PVW4K'],
  ['#/experiments/0/runs/0123456789abcdef0123456789abcdef/artifacts', '0123456789abcdef0123456789abcdef'],
  ['#/experiments/0/runs/abc?x=1', 'abc'],
  ['#/experiments/12', ''],
  ['#/experiments/12/models/m-0123', ''],
  ['#/experiments/12/runs/..%2f..', ''],
  ['#/experiments/x/runs/abc', undefined],
  ['#/experiments/1x', undefined],
  ['#main', undefined],
  ['', undefined],
])('the run of %s', (hash, run) => {
  expect(linked(hash)).toEqual(run === undefined ? undefined : run ? { kind: 'run', name: run } : { kind: 'runs' });
});

test.each([
  ['#/models/churn', { kind: 'model', name: 'churn' }],
  ['#/models/churn/versions/3', { kind: 'model', name: 'churn' }],
  ['#/models/%D9%86%D9%85%D9%88%D8%B0%D8%AC%201?x=y', { kind: 'model', name: 'نموذج 1' }],
  ['#/models/a%2Fb%20%2B%20100%25%23', { kind: 'model', name: 'a/b + 100%#' }],
  ['#/models/100%', { kind: 'model', name: '100%' }],
  ['#/models/a+b', { kind: 'model', name: 'a+b' }],
  ['#/jobs/job_01M8FM0D57CC279GA15T0PVW4K', { kind: 'job', name: 'job_01M8FM0D57CC279GA15T0PVW4K' }],
  ['#/models', undefined],
  ['#/models/', undefined],
  ['#/modelsx/a', undefined],
  ['#/x/models/a', undefined],
])('linked %s', (hash, what) => {
  expect(linked(hash)).toEqual(what);
});

const odd = ['plain', 'a b', 'a+b', '100%', '%2F', '%25', 'a/b', '#1', '?x=1', 'a&b=c', 'نموذج', 'ü', '😀', 'a,b', "it's", '~!*()', 'a\\b', '@3', ' x '];

test.each(odd)('an address of %s is read as it was built', (name) => {
  for (const built of [pathOf('nyc', 'sweeps', name), placeOf('nyc', 'job', name), placeOf('nyc', 'dataset', name), placeOf('nyc', 'run', name), lineageOf('nyc', 'model', name, 'https://elsewhere/?a=1#b')]) {
    const url = new URL('/console' + built, 'https://falaj.example'); // as a browser takes it
    expect(url.hash).toBe('');
    const at = partsOf(url.pathname.slice('/console'.length));
    expect(at.project).toBe('nyc');
    expect(at.object).toBe(at.section === 'lineage' ? `model ${name}` : name);
  }
  expect(linked(`#/models/${encodeURIComponent(name)}/versions/1`)).toEqual({ kind: 'model', name });
});

test('an address that is not encoded well is taken as it is', () => {
  expect(partsOf('/p/nyc/jobs/100%')).toEqual({ project: 'nyc', section: 'jobs', object: '100%' });
  expect(partsOf('/')).toEqual({ project: undefined, section: '', object: '' });
});
