// Writes src/generated/theme.css: the variables of Mantine's theme with our
// colours. Mantine would write them into a <style> element at run time, which
// the Content-Security-Policy does not allow.
import { mkdirSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';

const { DEFAULT_THEME, defaultCssVariablesResolver, mergeMantineTheme } = createRequire(import.meta.url)('@mantine/core');
const { theme } = await import('../src/frame/theme.mjs');
const { variables, light, dark } = defaultCssVariablesResolver(mergeMantineTheme(DEFAULT_THEME, theme));
const block = (selector, values) =>
  `${selector} {\n${Object.entries(values).map(([k, v]) => `  ${k}: ${v};`).join('\n')}\n}\n`;
mkdirSync(new URL('../src/generated/', import.meta.url), { recursive: true });
writeFileSync(
  new URL('../src/generated/theme.css', import.meta.url),
  '/* Written by scripts/theme.mjs. */\n' +
    block(':root', variables) +
    block(":root[data-mantine-color-scheme='light']", light) +
    block(":root[data-mantine-color-scheme='dark']", dark),
);
