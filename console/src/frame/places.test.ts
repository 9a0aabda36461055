import { expect, test } from 'vitest';
import { linkedRun } from './places';

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
])('linkedRun %s', (hash, run) => {
  expect(linkedRun(hash)).toBe(run);
});
