// The theme, as plain JavaScript because scripts/theme.mjs reads it, too.

/** @type {import('@mantine/core').MantineThemeOverride} */
export const theme = {
  primaryColor: 'falaj',
  primaryShade: { light: 8, dark: 5 },
  autoContrast: true,
  cursorType: 'pointer',
  defaultRadius: 'sm',
  fontFamily: "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'Liberation Sans', sans-serif",
  fontFamilyMonospace: "ui-monospace, SFMono-Regular, Menlo, Consolas, 'Liberation Mono', monospace",
  headings: { fontWeight: '600' },
  colors: {
    falaj: ['#e8f5f5', '#cfe8e9', '#a3d2d5', '#74bbc0', '#4aa5ac', '#2b929a', '#1b8189', '#106d75', '#0b5c63', '#074349'],
    dark: ['#d9e1e5', '#b6c2c9', '#8e9ca5', '#687680', '#46545d', '#334049', '#26323a', '#1a242a', '#131b20', '#0d1418'],
  },
};
