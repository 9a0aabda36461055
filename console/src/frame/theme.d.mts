import type { MantineThemeOverride } from '@mantine/core';
export const theme: MantineThemeOverride;
