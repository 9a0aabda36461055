// A table of any length: only the rows in sight are in the page. Arrow keys move
// between rows, Enter opens one, "/" goes to the filter.
import { TextInput } from '@mantine/core';
import { flexRender, getCoreRowModel, getFilteredRowModel, getSortedRowModel, useReactTable, type ColumnDef, type RowData, type SortingState } from '@tanstack/react-table';
import { useVirtualizer } from '@tanstack/react-virtual';
import { useEffect, useRef, useState, type KeyboardEvent, type ReactNode } from 'react';
import type { List } from '../api/queries';
import { count } from './format';
import { Icon } from './Icon';
import { Failed, Wait } from './State';

declare module '@tanstack/react-table' {
  interface ColumnMeta<TData extends RowData, TValue> {
    width?: string;
    right?: boolean;
  }
}

const rowHeight = 40; // px, as in the style sheet

interface Props<T> {
  label: string;
  list: List<T>;
  // Columns of one table have values of several types.
  columns: ColumnDef<T, any>[];
  rowKey: (row: T) => string;
  open?: (row: T) => void;
  sort?: SortingState;
  empty: ReactNode;
}

export function DataTable<T>({ label, list, columns, rowKey, open, sort, empty }: Props<T>) {
  const [sorting, setSorting] = useState<SortingState>(sort ?? []);
  const [filter, setFilter] = useState('');
  const scroller = useRef<HTMLDivElement>(null);
  const [at, setAt] = useState(0);
  const table = useReactTable({
    data: list.rows,
    columns,
    getRowId: rowKey,
    state: { sorting, globalFilter: filter },
    onSortingChange: setSorting,
    onGlobalFilterChange: setFilter,
    globalFilterFn: 'includesString',
    getColumnCanGlobalFilter: () => true,
    getCoreRowModel: getCoreRowModel(),
    getSortedRowModel: getSortedRowModel(),
    getFilteredRowModel: getFilteredRowModel(),
  });
  const rows = table.getRowModel().rows;
  const virtual = useVirtualizer({ count: rows.length, getScrollElement: () => scroller.current, estimateSize: () => rowHeight, overscan: 12 });
  const seen = virtual.getVirtualItems();
  const first = seen[0]?.start ?? 0;
  const last = virtual.getTotalSize() - (seen.at(-1)?.end ?? 0);
  const current = Math.min(at, Math.max(0, rows.length - 1));

  const focus = (to: number) => {
    const index = Math.max(0, Math.min(rows.length - 1, to));
    setAt(index);
    virtual.scrollToIndex(index);
    // The row may have to be made first.
    requestAnimationFrame(() => scroller.current?.querySelector<HTMLElement>(`tr[data-index="${index}"]`)?.focus({ preventScroll: true }));
  };
  const page = () => Math.max(1, Math.floor((scroller.current?.clientHeight ?? 400) / rowHeight) - 2);
  const pressed = (e: KeyboardEvent) => {
    const steps: Record<string, () => number> = {
      ArrowDown: () => current + 1, ArrowUp: () => current - 1, PageDown: () => current + page(), PageUp: () => current - page(), Home: () => 0, End: () => rows.length - 1,
      j: () => current + 1, k: () => current - 1,
    };
    const to = steps[e.key];
    if (to && !e.ctrlKey && !e.metaKey && !e.altKey) {
      e.preventDefault();
      focus(to());
    } else if (e.key === 'Enter' && open && rows[current] && (e.target as HTMLElement).tagName === 'TR') {
      open(rows[current].original);
    }
  };
  useEffect(() => setAt(0), [filter, sorting]);

  if (list.loading) return <Wait what={`Loading ${label.toLowerCase()} …`} />;
  if (list.error) return <Failed error={list.error} again={list.again} />;
  if (list.rows.length === 0) return empty;
  return (
    <div className="datatable">
      <div className="tools">
        <TextInput
          size="xs" type="search" data-filter placeholder="Filter" aria-label={`Filter ${label.toLowerCase()}`} value={filter} leftSection={<Icon name="search" size={14} />}
          onChange={(e) => setFilter(e.currentTarget.value)}
          onKeyDown={(e) => {
            if (e.key === 'Escape') {
              setFilter('');
              e.currentTarget.blur();
            } else if (e.key === 'ArrowDown' || e.key === 'Enter') {
              e.preventDefault();
              focus(0);
            }
          }}
        />
        <span className="dim" role="status">
          {rows.length === list.rows.length ? count(rows.length) : `${count(rows.length)} of ${count(list.rows.length)}`}
          {list.more && ', loading more …'}
          {list.cut && ', the newest'}
        </span>
      </div>
      <div className="scroller" ref={scroller} onKeyDown={pressed}>
        <table aria-label={label} aria-rowcount={rows.length + 1}>
          <thead>
            {table.getHeaderGroups().map((group) => (
              <tr key={group.id} aria-rowindex={1}>
                {group.headers.map((h) => {
                  const sorted = h.column.getIsSorted();
                  return (
                    <th
                      key={h.id} scope="col" style={{ width: h.column.columnDef.meta?.width }} className={h.column.columnDef.meta?.right ? 'right' : undefined}
                      aria-sort={sorted === 'asc' ? 'ascending' : sorted === 'desc' ? 'descending' : 'none'}
                    >
                      {h.column.getCanSort() ? (
                        <button type="button" onClick={h.column.getToggleSortingHandler()}>
                          {flexRender(h.column.columnDef.header, h.getContext())}
                          <span aria-hidden="true">{sorted === 'asc' ? ' ↑' : sorted === 'desc' ? ' ↓' : ''}</span>
                        </button>
                      ) : (
                        flexRender(h.column.columnDef.header, h.getContext())
                      )}
                    </th>
                  );
                })}
              </tr>
            ))}
          </thead>
          <tbody>
            {first > 0 && <tr aria-hidden="true" style={{ height: first }} />}
            {seen.map((v) => {
              const row = rows[v.index]!;
              return (
                <tr
                  key={row.id} data-index={v.index} aria-rowindex={v.index + 2} tabIndex={v.index === current ? 0 : -1} className={open ? 'opens' : undefined}
                  onFocus={() => setAt(v.index)}
                  onClick={(e) => {
                    if (open && !(e.target as HTMLElement).closest('a, button, input, label') && !getSelection()?.toString()) open(row.original);
                  }}
                >
                  {row.getVisibleCells().map((cell) => (
                    <td key={cell.id} className={cell.column.columnDef.meta?.right ? 'right num' : undefined}>
                      {flexRender(cell.column.columnDef.cell, cell.getContext())}
                    </td>
                  ))}
                </tr>
              );
            })}
            {last > 0 && <tr aria-hidden="true" style={{ height: last }} />}
          </tbody>
        </table>
        {rows.length === 0 && <p className="dim none">Nothing contains “{filter}”.</p>}
      </div>
    </div>
  );
}
