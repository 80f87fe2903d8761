# program: SBCL: a heap that it collects
# version: sbcl --version
"$RUN" sbcl --noinform --no-userinit --non-interactive --eval '(let ((h (make-hash-table)) (s 0))
    (dotimes (n 300000) (setf (gethash (mod (* n 7919) 1000003) h) (list n (format nil "~a" n))))
    (maphash (lambda (k v) (declare (ignore k)) (incf s (length (second v)))) h)
    (format t "~a ~a~%" (hash-table-count h) s))' --eval '(sb-ext:exit :code 8)'
