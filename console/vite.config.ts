import react from '@vitejs/plugin-react';
import { defineConfig } from 'vite';

// The console is served below /console/ by the binary. `npm run dev` takes the
// API from a server that runs on this machine.
export default defineConfig({
  base: '/console/',
  plugins: [react()],
  build: {
    outDir: 'dist',
    emptyOutDir: true,
    target: 'es2022',
    assetsInlineLimit: 0,
    modulePreload: false,
    chunkSizeWarningLimit: 1200,
  },
  server: { proxy: { '/api': 'http://127.0.0.1:7070' } },
});
